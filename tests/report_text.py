"""What stands in the text of a report."""

import json
import re
from typing import Any

from analysis import Study
from analysis.groups import group_fields
from analysis.report.labels import labelled
from analysis.report.summary import findings


def embedded_data(page: str) -> dict[str, Any]:
    """The figures of the page."""
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def readable(page: str) -> str:
    """The page without style and scripts."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)


def summary(study: Study) -> str:
    """What the report says in words."""
    fields = group_fields(study.runs)
    return "\n".join(f"{part.word}: {part.text}" for part in findings(study, labelled(study, fields), fields))
