"""Parts of a report: embedded data, readable text, findings."""

import json
import re
from typing import Any

from analysis import Study
from analysis.groups import group_fields
from analysis.report.figures import labelled
from analysis.report.summary import findings


def embedded_data(page: str) -> dict[str, Any]:
    """Return the data of the page's scripts."""
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def readable(page: str) -> str:
    """Return the page without style and scripts."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)


def summary(study: Study) -> dict[str, str]:
    """Return the texts of the findings by their headings."""
    fields = group_fields(study.runs)
    return {part.word: part.text for part in findings(study, labelled(study, fields))}
