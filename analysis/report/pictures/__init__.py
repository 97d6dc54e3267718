"""Pictures of the first screen as SVG: they need no script, print, and take the page's colours for light and dark."""

from analysis.report.pictures.groups import Picture
from analysis.report.pictures.lines import lines_picture
from analysis.report.pictures.matrices import matrices_picture
from analysis.report.pictures.plane import plane_picture
from analysis.report.pictures.ranking import ranking_picture

__all__ = ["Picture", "lines_picture", "matrices_picture", "plane_picture", "ranking_picture"]
