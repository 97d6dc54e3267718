"""Face alignment: two eyes, nose and two mouth corners are moved to fixed places of a 112 × 112 crop.

Points of the plane are complex numbers z = x + iy, so that a rotation with uniform scale and translation is z → az + b.
Least squares Σ |a z_k + b − w_k|² over landmarks z_k and reference points w_k has the solution

    a = Σ conj(z_k − z̄) (w_k − w̄) / Σ |z_k − z̄|²,    b = w̄ − a z̄,

which is Umeyama's for the plane: no complex a is a reflection.

Landmarks are measured from the centre of the first pixel, as usual; Pillow measures from its corner, half a pixel off.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from PIL import Image

from cl2r.data.images import WHOLE, LazyImages

Landmarks = npt.NDArray[np.float32]  # x and y of five points: (..., 5, 2)
Complex = npt.NDArray[np.complex128]

CROP = 112
REFERENCE: Landmarks = np.array(
    [(38.2946, 51.6963), (73.5318, 51.5014), (56.0252, 71.7366), (41.5493, 92.3655), (70.7299, 92.2041)], np.float32
)
"""Left and right eye as seen in the image, nose, left and right corner of the mouth in a crop of 112 × 112."""


@dataclass(frozen=True, eq=False)
class AlignedImages(LazyImages):
    """Images that are aligned by their landmarks when they are opened."""

    landmarks: Landmarks = field(kw_only=True)  # (N, 5, 2), in pixels of the encoded image

    def identity(self) -> Iterator[bytes]:
        yield f"{self.shape}aligned".encode()
        yield np.ascontiguousarray(self.landmarks).tobytes()
        yield from self.encoded.identity()

    def open(self, row: int, at_least: int) -> Image.Image:
        """Return the aligned square of 112 pixels per side, as in published crops, or of `at_least` if that is more."""
        # landmarks refer to the full size
        return aligned(super().open(row, WHOLE), self.landmarks[row], max(at_least, CROP))


def aligned(image: Image.Image, landmarks: Landmarks, side: int) -> Image.Image:
    """Return the crop of `side` × `side` whose landmarks are nearest to the scaled reference points."""
    a, b = similarity(_plane(landmarks), _plane(REFERENCE) * (side / CROP))
    slope, shift = 1 / complex(a), -complex(b) / complex(a)
    # c of x = c₀x' + c₁y' + c₂, y = c₃x' + c₄y' + c₅, which maps the crop to the image
    inverse = slope.real, -slope.imag, shift.real, slope.imag, slope.real, shift.imag
    return image.transform((side, side), Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR)


def similarity(points: Complex, targets: Complex) -> tuple[Complex, Complex]:
    """Return a and b of z → az + b that maps points (..., 5) nearest to their targets."""
    centre, aim = points.mean(-1, keepdims=True), targets.mean(-1, keepdims=True)
    spread = (np.abs(points - centre) ** 2).sum(-1)
    a: Complex = ((points - centre).conj() * (targets - aim)).sum(-1) / spread
    return a, aim[..., 0] - a * centre[..., 0]


def alignable(landmarks: Landmarks) -> npt.NDArray[np.bool_]:
    """Return whether landmarks (..., 5, 2) determine a similarity: finite, and not one point five times."""
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = similarity(_plane(landmarks), _plane(REFERENCE))
    fine: npt.NDArray[np.bool_] = np.isfinite(a) & np.isfinite(b) & (a != 0)
    return fine


def _plane(points: Landmarks) -> Complex:
    """Return complex numbers, measured from the corner of the first pixel."""
    moved = points.astype(np.float64) + 0.5
    return np.asarray(moved[..., 0] + 1j * moved[..., 1], np.complex128)
