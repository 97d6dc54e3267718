"""Secrets: none of those in the environment, addresses, options and errors here is ever written or shown.

Every one of them holds the word `planted`, and nothing else does.
"""

import io
import logging
import sys
from pathlib import Path

import pandas as pd
import pytest

from cl2r.cli.report import leave_report
from cl2r.config.layers import override, resolve
from cl2r.engine.chain import Chain
from cl2r.errors import TrainingError
from cl2r.rayrun import trial
from cl2r.rayrun.tune import failure_reason
from cl2r.runtime.logs import HIDDEN, anonymous, configure, errors_without_secrets, exit_code, without_secrets
from cl2r.study.folder import StudyFolder
from cl2r.study.frames import FRAMES, write_frames
from cl2r.study.jobs import Job, plan_job
from cl2r.study.ledger import Ledger
from cl2r.study.spec import Point
from cl2r.study.status import status
from tests.support.command_line import Command
from tests.support.small_study import small_session, small_study

KEY, SECRET = "AKIAPLANTEDPLANTED12", "wJalrPlanted/K7MDENG+bPxPlanted"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_SESSION_TOKEN": "FwoGZXIvYXdzPlanted//////wEaDPlanted",
    "HF_TOKEN": "hf_PlantedPlantedPlantedPlanted12",
    "RAY_AUTH_TOKEN": "planted-ray-0123456789",
    "MY_PASSWORD": "planted horse battery",
}
BUCKET = f"s3://{KEY}:{SECRET}@bucket/x"
PAGE = "https://plantedUser:plantedPass@host/x"
SIGNED = (
    "https://bucket.s3.amazonaws.com/links/0f/state?X-Amz-Algorithm=AWS4-HMAC-SHA256"
    f"&X-Amz-Credential={KEY}%2F20261116%2Feu%2Fs3&X-Amz-Security-Token=Planted%2F%2Fx&X-Amz-Signature=0planted9&x-id=Get"
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def assert_clean(text: str) -> str:
    """Assert that the text has no secret, and return it."""
    assert "planted" not in text.lower(), text[max(0, text.lower().find("planted") - 80) :][:200]
    return text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BUCKET, "s3://bucket/x"),
        (PAGE, "https://host/x"),
        ("https:/plantedUser:plantedPass@host/x", "https:/host/x"),
        ("https://plantedToken@host/x", "https://host/x"),
        (
            "s3://b/x?endpoint_override=http%3A%2F%2FplantedU%3AplantedP%40host",
            "s3://b/x?endpoint_override=http%3A%2F%2Fhost",
        ),
        ("Authorization: Bearer planted.planted-0", f"Authorization: Bearer {HIDDEN}"),
        ('{"token": "planted"}', f'{{"token": {HIDDEN}}}'),
        ('{\\"api_key\\": \\"planted\\"}', f'{{\\"api_key\\": {HIDDEN}}}'),
        ("Secret Access Key: planted", f"Secret Access Key: {HIDDEN}"),
        (f"The key {KEY} does not exist", f"The key {HIDDEN} does not exist"),
        ("denied for planted-ray-0123456789.", f"denied for {HIDDEN}."),
        ("password 'planted horse battery' is wrong", f"password '{HIDDEN}' is wrong"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nplanted\n-----END RSA PRIVATE KEY-----",
            f"{HIDDEN}-----END RSA PRIVATE KEY-----",
        ),
        ("sig=planted&sv=1", f"sig={HIDDEN}&sv=1"),
        ("ghp_" + "planted" * 6, HIDDEN),
    ],
)
def test_secrets_in_a_text_are_hidden(text: str, expected: str) -> None:
    assert without_secrets(text) == expected
    assert_clean(anonymous(text))


@pytest.mark.parametrize(
    "text",
    [
        "/home/alice/data/x.npz: no such file",
        "[Errno 28] No space left on device: '/mnt/a@b/links/.0f.12'",
        "http://host:8080/x@y and http://[::1]:80/x@y",
        "s3://bucket/a@b/c?region=eu-west-1&endpoint_override=localhost%3A9000",
        "engine7:/data/x@2",
        "optim.epochs=3, memory.per_class=20: loss is not a number in task 2",
        "KeyError: 'method.name'; file:///tmp/x:y",
        "Basic block 3 of resnet18; the bearer of news",
        "a signature of two arguments; seed 7",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_secrets(text) == text


def test_a_signed_address_keeps_its_path() -> None:
    shown = assert_clean(without_secrets(f"OSError: When reading {SIGNED}: AccessDenied"))
    assert "https://bucket.s3.amazonaws.com/links/0f/state?" in shown
    assert shown.endswith("AccessDenied")


def test_a_file_of_secrets_is_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path))
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token-of-the-node")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    text = f"{tmp_path}/x, /var/run/token-of-the-node, false"
    assert without_secrets(text) == text


@pytest.mark.parametrize("kind", [OSError, FileNotFoundError, ValueError])
def test_an_error_is_raised_again_without_secrets(kind: type[Exception]) -> None:
    with pytest.raises((OSError, RuntimeError)) as caught, errors_without_secrets():
        raise kind(SIGNED)
    assert assert_clean(str(caught.value)).startswith(f"{kind.__name__}: https://bucket")
    assert isinstance(caught.value, OSError) == issubclass(kind, OSError)
    assert caught.value.__suppress_context__


def test_an_error_that_holds_none_stays_as_it_is() -> None:
    first = TrainingError("not a number")
    with pytest.raises(TrainingError) as caught, errors_without_secrets():
        raise first
    assert caught.value is first
    first.__cause__ = OSError(SIGNED)
    with pytest.raises(TrainingError) as caught, errors_without_secrets():
        raise first
    assert caught.value is first
    assert first.__cause__ is None


@pytest.mark.parametrize(("kind", "defect"), [(TrainingError, False), (OSError, False), (KeyError, True)])
def test_a_program_that_fails_shows_no_secret_and_a_defect_with_its_place(
    kind: type[Exception], defect: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> int:
        raise kind(f"{SIGNED} {BUCKET} {PAGE}")

    assert exit_code("toy", main) == 1
    err = assert_clean(capsys.readouterr().err)
    assert "bucket" in err
    assert err.startswith("Traceback (most recent call last):") == defect
    assert (err.count("\n") > 1) == defect


def test_the_reason_of_a_failed_trial_shows_none(tmp_path: Path) -> None:
    class Trial:
        error_file = str(tmp_path / "error.txt")

    (tmp_path / "error.txt").write_text(f"Failure # 1\nTraceback:\nOSError: {SIGNED}\n")
    assert assert_clean(failure_reason(Trial())).startswith("OSError: https://bucket")
    (tmp_path / "error.txt").write_bytes(b"Failure # 1\nOSError: \xff\n")
    assert failure_reason(Trial()) == "OSError: \ufffd"


WORDS = [
    ["report", BUCKET],
    ["report", PAGE],
    ["report", "--storage", BUCKET],
    ["status", "--storage", BUCKET],
    ["status", PAGE],
    ["run", "--data", PAGE],
    ["run", "--data-root", PAGE],
    ["run", "--data-root", PAGE, "--show-config"],
    ["run", "--set", f"data.root={PAGE}"],
    ["run", "--set", f"method.name={PAGE}"],
    ["run", "--set", f"token={KEY}"],
    ["run", PAGE],
    ["run", "--seed", PAGE],
    ["study", "ablation", "--plan", "--storage", BUCKET],
    ["study", "ablation", "--plan", "--name", BUCKET],
    ["study", "ablation", "--plan", "--data-root", PAGE],
    ["study", "ablation", "--plan", "--tasks", PAGE],
    ["study", "ablation", PAGE],
    ["study", f"{PAGE}.yaml"],
    ["study", PAGE],
    ["datasets", "check", "cifar100", PAGE],
]


@pytest.mark.parametrize("words", WORDS, ids=[" ".join(words[:-1]) for words in WORDS])
def test_a_command_is_refused_without_repeating_it(cl2r: Command, words: list[str], tmp_path: Path) -> None:
    code, out, err = cl2r(*words)
    assert code == 2, (code, out, err)
    assert_clean(out + err)
    assert err or "wrong" in out
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_config_with_a_secret_is_refused() -> None:
    """It is written into every frame."""
    for text in (f"data.root={PAGE}", f"data.root={BUCKET}", f"data.name='{SIGNED}'", f"data.root=/x/{KEY}"):
        with pytest.raises(ValueError, match=r"^config: data\.\w+: holds a login or a token") as caught:
            resolve([{}, override(text)])
        assert_clean(str(caught.value))
    assert resolve([{}, override("data.root=/home/alice/data")]).data.root == "/home/alice/data"


def everything(root: Path) -> str:
    """All files below, frames also as text, for compression might hide a word."""
    texts = []
    for path in sorted(root.rglob("*")):
        if path.is_file():
            texts.append(f"{path.relative_to(root)}\n{path.read_bytes().decode('latin-1')}")
        if path.suffix == ".parquet":
            texts.append(pd.read_parquet(path).to_csv())
    return "\n".join(texts)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the links of the run with seed 1 be unreadable; the log names every link."""
    reach = Chain.ensure_link

    def hindered(self: Chain, task: int) -> None:
        logging.getLogger("cl2r.engine.links").warning("link of task %s is damaged (%s)", task, SIGNED)
        if self.plan.config.seed == 1:
            try:
                raise OSError(f"AWS Error ACCESS_DENIED during GetObject: {SIGNED}; {BUCKET}; {ENVIRONMENT}")
            except OSError as error:
                raise ValueError(f"cannot use {PAGE}: {error}") from error
        reach(self, task)

    monkeypatch.setattr(Chain, "ensure_link", hindered)


@pytest.mark.usefixtures("failing")
def test_a_study_leaves_none(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trials of a small study as Tune would run them, one of which fails; then frames, figures, page, status."""
    monkeypatch.setattr(trial.tune, "report", lambda _: None)
    words = f"cl2r study x --storage {BUCKET} --data-root {PAGE} --token planted --set a.secret={KEY} {SIGNED}"
    monkeypatch.setattr(sys, "argv", words.split())
    study = small_study(tiny, seeds=[0, 1], set={"scenario.n_tasks": 2, "optim.epochs": 1, "optim.milestones": []})
    folder = StudyFolder(tmp_path / "storage", "study")
    folder.claim_name(study.identity(["data"]))
    folder.ledger.write("opened", "driver", {"resources": {}, "runs": 2})
    folder.write_about({}, 2)
    job = plan_job(study, Point(None, {}), 0)
    for number, run in enumerate(job.runs):
        alone = Job(number, None, (run,)).to_json()
        config = {"job": alone, "study": str(folder.path), "trained_by": "x", "resources": {"workers": 1}}
        trial.run_trial(config)
        assert run.name in folder.ledger.outcomes()
    frames = write_frames(folder)
    assert sorted(frames["runs"]["status"]) == ["failed", "finished"]
    with small_session(folder).tracking:
        pass  # logs what the ledger has
    leave_report(folder, frames)
    print(status(folder.storage, "study"))

    out, err = capsys.readouterr()
    assert "ACCESS_DENIED during GetObject: https://bucket" in assert_clean(out), "the reason can still be read"
    assert "Traceback" in assert_clean(err)
    left = assert_clean(everything(folder.storage))
    for name in ("about.json", "study.yaml", "report.html", "tensorboard/", "figures/", "ledger/", *FRAMES):
        assert name in left
    assert left.count("ACCESS_DENIED during GetObject: https://bucket") >= 3, "ledger, frame and page"


def test_the_ledger_removes_secrets_from_texts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.write("failed", "run", {"reason": f"{SIGNED} /home/alice/x", "trial": 3})
    ledger.write("noted", "run", {"line": BUCKET})
    failed, noted = ledger.events()
    assert failed.read()["reason"].endswith(" /home/alice/x")
    assert failed.read()["trial"] == 3
    assert noted.read() == {"line": "s3://bucket/x"}
    assert_clean(everything(tmp_path))


def test_the_log_shows_none(capsys: pytest.CaptureFixture[str]) -> None:
    configure("run: ")
    logging.getLogger("cl2r.engine.links").warning("link 0f is damaged (%s)", SIGNED)
    assert "run: link 0f is damaged (https://bucket" in assert_clean(capsys.readouterr().err)


def test_the_word_is_looked_for_everywhere(tmp_path: Path) -> None:
    """The search finds a secret in a text and in a compressed frame."""
    (tmp_path / "a.txt").write_text("x Planted")
    with pytest.raises(AssertionError):
        assert_clean(everything(tmp_path))
    (tmp_path / "a.txt").unlink()
    stream = io.BytesIO()
    pd.DataFrame({"reason": ["planted"] * 3}).to_parquet(stream, compression="gzip")
    (tmp_path / "a.parquet").write_bytes(stream.getvalue())
    with pytest.raises(AssertionError):
        assert_clean(everything(tmp_path))
