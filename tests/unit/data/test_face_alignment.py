"""Alignment of faces by five landmarks."""

import pickle

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from scipy.optimize import least_squares

from cl2r.data.face_alignment import CROP, REFERENCE, AlignedImages, Landmarks, alignable, aligned, similarity
from cl2r.data.images import ImageFiles, LazyImages

Points = npt.NDArray[np.float64]


def as_complex(points: Points) -> npt.NDArray[np.complex128]:
    return np.asarray(points[..., 0] + 1j * points[..., 1], np.complex128)


def moved(points: Points, scale: float, angle: float, shift: tuple[float, float]) -> Points:
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.asarray(scale * points @ turn.T + np.array(shift), np.float64)


def slow_similarity(points: Points, targets: Points) -> tuple[complex, complex]:
    """By a general solver, from several angles so that it does not end in a local minimum."""

    def residual(parameters: Points) -> Points:
        scale, angle, x, y = parameters
        return (moved(points, scale, angle, (x, y)) - targets).ravel()

    starts = [(1.0, angle, 0.0, 0.0) for angle in (-2.0, 0.0, 2.0)]
    scale, angle, x, y = min((least_squares(residual, start, xtol=1e-14) for start in starts), key=lambda s: s.cost).x
    return complex(scale * np.exp(1j * angle)), complex(x, y)


@pytest.mark.parametrize("seed", range(5))
def test_similarity_is_the_least_squares_one(seed: int) -> None:
    draw = np.random.default_rng(seed)
    points, targets = draw.normal(0, 30, (5, 2)), draw.normal(50, 20, (5, 2))
    a, b = similarity(as_complex(points), as_complex(targets))
    expected_a, expected_b = slow_similarity(points, targets)
    assert complex(a) == pytest.approx(expected_a, abs=1e-5)
    assert complex(b) == pytest.approx(expected_b, abs=1e-4)


def test_no_reflection_even_where_it_would_fit_exactly() -> None:
    points = REFERENCE.astype(np.float64)
    mirrored = points * np.array([-1.0, 1.0])
    a, b = similarity(as_complex(points), as_complex(mirrored))
    expected_a, _ = slow_similarity(points, mirrored)
    assert complex(a) == pytest.approx(expected_a, abs=1e-5)
    assert np.abs(a * as_complex(points) + b - as_complex(mirrored)).max() > 1


def test_a_known_similarity_is_recovered_for_many_faces_at_once() -> None:
    draw = np.random.default_rng(0)
    points = draw.normal(0, 30, (20, 5, 2))
    scales, angles = draw.uniform(0.1, 4, 20), draw.uniform(-3, 3, 20)
    targets = np.stack([moved(p, s, t, (7, -3)) for p, s, t in zip(points, scales, angles, strict=True)])
    a, b = similarity(as_complex(points), as_complex(targets))
    np.testing.assert_allclose(a, scales * np.exp(1j * angles), atol=1e-12)
    np.testing.assert_allclose(b, np.full(20, 7 - 3j), atol=1e-9)


def test_alignable() -> None:
    face = REFERENCE * 2
    point, unknown = np.full((5, 2), 3, np.float32), face.copy()
    unknown[2, 1] = np.nan
    assert alignable(np.stack([face, point, unknown])).tolist() == [True, False, False]


def dotted(landmarks: Landmarks, dot: int, shape: tuple[int, int] = (200, 240)) -> Image.Image:
    """A black image with a soft white dot at one landmark."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    distance = (x - landmarks[dot, 0]) ** 2 + (y - landmarks[dot, 1]) ** 2
    return Image.fromarray((255 * np.exp(-distance / 18)).astype(np.uint8), "L")


def centre_of_light(pixels: npt.NDArray[np.uint8]) -> Points:
    light = pixels.astype(np.float64)
    y, x = np.mgrid[: light.shape[0], : light.shape[1]]
    return np.asarray([(light * x).sum() / light.sum(), (light * y).sum() / light.sum()], np.float64)


def tilted_face() -> Landmarks:
    return moved(REFERENCE.astype(np.float64) - 56, 1.3, 0.5, (120, 100)).astype(np.float32)


@pytest.mark.parametrize("dot", range(5))
@pytest.mark.parametrize(("side", "atol"), [(CROP, 0.1), (56, 0.15), (168, 0.15)])
def test_a_dot_at_a_landmark_comes_to_the_reference_place(dot: int, side: int, atol: float) -> None:
    landmarks = tilted_face()
    crop = aligned(dotted(landmarks, dot), landmarks, side)
    assert crop.size == (side, side)
    expected = (REFERENCE[dot] + 0.5) * side / CROP - 0.5
    np.testing.assert_allclose(centre_of_light(np.asarray(crop)), expected, atol=atol)


def test_an_image_that_is_aligned_already_stays_as_it_is() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (CROP, CROP, 3), np.uint8)
    crop = np.asarray(aligned(Image.fromarray(pixels), REFERENCE, CROP))
    np.testing.assert_allclose(crop.astype(int), pixels, atol=1)  # Pillow rounds down


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ImageFiles:
    folder = tmp_path_factory.mktemp("faces")
    for dot in range(5):  # so much larger than the crop that a draft would be decoded at a fraction of the size
        dotted(tilted_face() * 2, dot, (400, 480)).convert("RGB").save(folder / f"{dot}.jpg")
    return ImageFiles(folder, [f"{dot}.jpg" for dot in range(5)])


def faces(files: ImageFiles, size: int, landmarks: Landmarks | None = None) -> AlignedImages:
    same = np.stack([tilted_face() * 2] * 5)
    return AlignedImages(files, size, 1, landmarks=same if landmarks is None else landmarks)


@pytest.mark.parametrize("size", [CROP, 56, 150])
def test_rows_of_aligned_images(files: ImageFiles, size: int) -> None:
    images = faces(files, size)
    assert isinstance(images, LazyImages)
    assert images.shape == (5, size, size, 1)
    rows = images.decode(np.array([4, 0]))
    for pixels, dot in zip(rows[..., 0], (4, 0), strict=True):
        expected = (REFERENCE[dot] + 0.5) * size / CROP - 0.5
        np.testing.assert_allclose(centre_of_light(pixels), expected, atol=1)
    np.testing.assert_array_equal(images.all()[4], rows[0])


def test_a_small_row_is_the_published_crop_made_smaller(files: ImageFiles) -> None:
    large = Image.fromarray(faces(files, CROP).resized(3)[..., 0], "L")
    small = large.resize((28, 28), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(faces(files, 28).resized(3)[..., 0], np.asarray(small))


def test_pickled_images_are_the_same(files: ImageFiles) -> None:
    images = faces(files, 40)
    again = pickle.loads(pickle.dumps(images))
    np.testing.assert_array_equal(again.resized(1), images.resized(1))
    assert list(again.identity()) == list(images.identity())


def test_identity_covers_landmarks_size_and_files(files: ImageFiles) -> None:
    other = np.stack([tilted_face() * 2] * 5)
    other[3, 1, 0] += 1
    plain = LazyImages(files, 40, 1)
    fewer = ImageFiles(files.root, map(files.path, range(4)))
    sets = [faces(files, 40), faces(files, 40, other), faces(files, 41), faces(fewer, 40), plain]
    assert len({tuple(images.identity()) for images in sets}) == len(sets)
