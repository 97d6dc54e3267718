"""Texts without the names of users, machines and homes; `test_security_secrets.py` has the secrets."""

import socket
import subprocess
import sys

import pytest

from cl2r.runtime.logs import anonymous, anonymous_entries, anonymous_words


@pytest.fixture(autouse=True)
def made_up_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user and a machine with names that nothing else has."""
    monkeypatch.setenv("HOME", "/mnt/people/countess")
    monkeypatch.setenv("USER", "lovelace")
    monkeypatch.setenv("LOGNAME", "lovelace")
    monkeypatch.setattr(socket, "gethostname", lambda: "engine7.lab")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("/mnt/people/countess/x", "~/x"),
        ("data.root=/mnt/people/countess", "data.root=~"),
        ("/mnt/people/countess2/x", "/mnt/people/countess2/x"),
        ("/home/alice/x", "~/x"),
        ("/Users/alice", "~"),
        ("/home/alice:/home/bob", "~:~"),
        ('["/home/alice", "/home/bob/y"]', '["~", "~/y"]'),
        ("file:///home/alice/x", "file://~/x"),
        ("no file '/home/alice/x.npz' (or /home/bob)", "no file '~/x.npz' (or ~)"),
        ("/data/home/bob/x", "/data/home/bob/x"),
        ("data/home/bob/x", "data/home/bob/x"),
        ("/scratch/lovelace/out", "/scratch/…/out"),
        ("/scratch/lovelace-2/out_lovelace", "/scratch/…-2/out_…"),
        ("lovelace/out", "…/out"),
        ("/scratch/lovelaces/out", "/scratch/lovelaces/out"),
        ("method=lovelace", "method=lovelace"),
        ("/net/engine7/y", "/net/…/y"),
        ("engine7.lab:/data", "…:/data"),
        ("lovelace@engine7:/data/x", "…@…:/data/x"),
        ("tcp://engine7:80/x", "tcp://…:80/x"),
        ("s3://me:pass@bucket/x?access_key=k&region=eu", "s3://bucket/x"),
        ("http://me@host/x, see y?", "http://host/x, see y?"),
        ("--token=X", "--token=…"),
        ("a.token=X", "a.token=…"),
        ("AWS_SECRET_ACCESS_KEY=X", "AWS_SECRET_ACCESS_KEY=…"),
        ("private-key: 'a b'", "private-key: …"),
        ("monkey=3 of api", "monkey=3 of api"),
        ("optim.epochs=3", "optim.epochs=3"),
    ],
)
def test_homes_names_and_secrets_in_a_word_are_hidden(word: str, expected: str) -> None:
    assert anonymous(word) == expected


@pytest.mark.parametrize(("home", "user", "expected"), [("/", "", "/root/y"), ("/root", "root", "~/y")])
def test_the_root_folder_and_the_root_user_are_no_names(
    home: str, user: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("USER", user)
    assert anonymous("/data/root/x of /root/y") == f"/data/root/x of {expected}"


def test_words_of_a_command() -> None:
    words = ["--password", "a b", "x", "--api-key=a b", "--set", "m.credential=a, b", "--tokens-per-batch", "5", "6"]
    shown = ["--password", "…", "x", "--api-key=…", "--set", "m.credential=…", "--tokens-per-batch", "…", "6"]
    assert anonymous_words(words) == shown


def test_entries_keep_their_kinds() -> None:
    entries = {"a": {"token": 7, "none": None, "secret": None}, "b": ["/home/x/y", "z"], "c": [1, {"password": ["p"]}]}
    cleaned = {"a": {"token": "…", "none": None, "secret": None}, "b": ["~/y", "z"], "c": [1, {"password": "…"}]}
    assert anonymous_entries(entries) == cleaned
    assert anonymous_entries({"n": 0.5, "yes": True}) == {"n": 0.5, "yes": True}


def test_logging_and_errors_import_no_large_package() -> None:
    code = "import sys, cl2r.runtime.logs; print({'numpy', 'torch', 'ray', 'pandas', 'click'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
