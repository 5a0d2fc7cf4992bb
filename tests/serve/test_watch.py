"""A study on pages that a server keeps up to date: what it answers, to whom, and how soon."""

from __future__ import annotations

import http.client
import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import psutil
import pytest

from bsweep.cli import main
from bsweep.core.terminal import BAD_CONFIG
from bsweep.runlog.files import RunPaths
from bsweep.runlog.locks import claimed
from bsweep.runlog.records import Evaluation
from bsweep.study.claims import claim_of_run
from tests.support.running import popen, wait_for
from tests.support.synthetic_study import META, write_run, write_study

HOSTILE = "<b>two"
PATIENCE = 240.0
UPDATED = "study.version > wanted && document.body.dataset.drawn && !document.body.style.minHeight"


class Server:
    """A `bsweep watch` that runs, and requests to it."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self.log = process, log
        printed = log.read_text
        wait_for(lambda: re.search(r"http://\S+\s", printed()), process, PATIENCE, printed)
        self.address, *_ = re.findall(r"http://\S+", printed())
        parts = urlsplit(self.address)
        self.port, self.root = parts.port or 0, parts.path

    def ask(
        self,
        path: str = "",
        method: str = "GET",
        root: str | None = None,
        at: str = "127.0.0.1",
        **headers: str,
    ) -> tuple[int, str, http.client.HTTPMessage]:
        """Return the status, the body and the headers of the answer to a request."""
        connection = http.client.HTTPConnection(at, self.port, timeout=PATIENCE)
        url = (self.root if root is None else root) + path
        connection.request(method, url, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers

    @contextmanager
    def events(
        self, path: str, name: str = "news", **headers: str
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """Yield what a path's events of a name tell, one after the other."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", self.root + path, headers=headers)
        answer = connection.getresponse()
        assert answer.headers["content-type"].startswith("text/event-stream")

        def told() -> Iterator[dict[str, Any]]:
            event = ""
            for line in map(bytes.decode, answer):
                event = line[7:-1] if line.startswith("event: ") else event
                if line.startswith("data: ") and event == name:
                    yield json.loads(line[6:])

        with closing(connection):
            yield told()


@contextmanager
def watching(folder: Path, *words: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "bsweep", "watch", "--port", "0", *words]
    log = folder / "watch.log"
    with log.open("w") as output:
        process = popen(command, folder, output=output)
    try:
        yield Server(process, log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a study with a damaged run."""
    folder = tmp_path_factory.mktemp("studies")
    write_study(folder / "one", local_batches=(8, 64), num_workers=(1,))
    damaged = write_run(folder / "one", local_batch=16)
    RunPaths(damaged).metrics.write_text('{"schema": 1, "type": "sta\n')
    with watching(folder, "one") as found:
        yield found


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:{port}"}, 200),
        ({"Host": "localhost:{port}", "Origin": "http://localhost:{port}"}, 200),
        ({"Host": "evil.example:{port}"}, 403),
        ({"Host": "localhost:1"}, 403),
        ({"Host": "192.0.2.1:{port}"}, 403),
        ({"Host": "localhost:{port}@evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["", "points/", "status.json"])
def test_only_this_machine_by_its_own_names_is_answered(
    path: str, headers: dict[str, str], status: int, server: Server
) -> None:
    given = {name: value.format(port=server.port) for name, value in headers.items()}
    found, body, _ = server.ask(path, **given)
    assert found == status
    assert ("one" in body) == (status == 200)


def test_the_server_only_shows_and_only_with_the_token(server: Server) -> None:
    for root in ("/", "/wrong/", "//", "/wr%C3%B6ng/", "/watch.js"):
        status, body, _ = server.ask(root=root)
        assert status == 403
        assert "token" in body
        assert "one" not in body
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert server.ask(method=method)[0] == 405
        assert server.ask(method=method, root="/wrong/")[0] == 403


def test_pages_keep_the_token_and_load_nothing_from_elsewhere(server: Server) -> None:
    for path in ("", "points/"):
        status, body, headers = server.ask(path)
        assert status == 200
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        policies = headers.get_all("content-security-policy") or []
        assert "frame-ancestors 'none'" in policies
        policy = " ".join([*policies, body])
        assert re.search(r"default-src 'none'; script-src '(self|sha256-)", policy)
        assert "unsafe" not in " ".join(re.findall(r"(?:script|style)-src [^;]*", policy))
        assert "http" not in re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL).replace(
            "http-equiv", ""
        )
    assert server.ask("none")[0] == 404
    assert server.ask("../one/config.yaml")[0] in (403, 404)


def test_the_page_of_a_study_is_the_interactive_report_without_damaged_runs(server: Server) -> None:
    _, body, _ = server.ask()
    assert '<script id="study"' in body
    assert "EventSource" in body
    assert "connect-src 'self'" in body
    told = orjson.loads(server.ask("document.json")[1])
    assert sorted(told["runs"]["local_batch"]) == [8, 64]
    points = json.loads(server.ask("status.json")[1])["points"]
    (damaged,) = (point for point in points if point["status"] == "damaged")
    assert damaged["run_id"].startswith("b16_")
    assert "metrics.jsonl" in damaged["message"]


@pytest.mark.full
def test_without_a_readable_run_the_page_shows_the_points(tmp_path: Path) -> None:
    run = write_run(tmp_path / HOSTILE, local_batch=8)
    RunPaths(run).metrics.write_text("no record")
    with watching(tmp_path, HOSTILE) as server:
        status, body, _ = server.ask()
        assert status == 200
        assert "<h1>&lt;b&gt;two</h1>" in body
        assert "There is no report yet:" in body
        assert "none of its 1 runs can be read" in body
        assert 'id="points"' in body
        assert json.loads(server.ask("status.json")[1])["counts"] == {"damaged": 1}


@pytest.mark.full
def test_new_records_reach_a_reader_who_follows_until_the_server_is_interrupted(
    tmp_path: Path,
) -> None:
    words = [
        "data=digits", "data.subset=200", "model=tiny_cnn", "strategy=single", "launch=inline",
        "local_batch=8,16", "epochs=40", "study=live", "optimizer.warmup_epochs=0",
    ]  # fmt: skip
    with (tmp_path / "run.log").open("w") as output:
        sweep = popen([sys.executable, "-m", "bsweep", "run", *words], tmp_path, output=output)
    try:
        begun = "results/live/*/metrics.jsonl"
        wait_for(lambda: [*tmp_path.glob(begun)], sweep, PATIENCE, (tmp_path / "run.log").read_text)
        with (
            watching(tmp_path, "results/live") as server,
            server.events("events?report=-1") as events,
            server.events("events?report=0", "curves") as grown,
        ):
            shown = [next(events)]
            while shown[-1].get("counts") != {"completed": 2}:
                shown.append(next(events))
            curves = (curve for told in grown for curve in told.values())
            assert any(len(curve["test_accuracy"]) > 3 for curve in curves)
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(PATIENCE) == 0
            assert "Traceback" not in server.log.read_text()
            assert len(server.log.read_text().splitlines()) == 2
    finally:
        sweep.kill()
        sweep.wait()
    assert len(shown[0]["points"]) == 2
    assert any(news["sweeps"] for news in shown)


def test_a_port_in_use_is_told(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    study = str(write_study(tmp_path / "s", local_batches=(8,), num_workers=(1,)))
    assert main.run(["watch", study, "--port", str(server.port)]) == BAD_CONFIG
    assert f"--port {server.port}: another program uses this port of 127.0.0.1." in caplog.text
    assert main.run(["watch", study, "--port", "70000"]) == BAD_CONFIG
    assert "--port 70000: give a port from 0 to 65535." in caplog.text
    assert main.run(["watch", str(tmp_path / "none")]) == BAD_CONFIG
    assert "none" in caplog.text.splitlines()[-1]


def test_the_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main.run(["watch", "results/any"]) == BAD_CONFIG
    assert "starlette, uvicorn not installed: pip install 'bsweep[watch]'" in caplog.text


@pytest.mark.full
def test_other_machines_are_answered_at_the_printed_addresses(tmp_path: Path) -> None:
    write_study(tmp_path / "s", local_batches=(8,), num_workers=(1,))
    with watching(tmp_path, "s", "--host", "0.0.0.0") as server:
        assert "nothing is encrypted" in server.log.read_text()
        printed = [urlsplit(one) for one in re.findall(r"http://\S+", server.log.read_text())]
        own = {
            one.address
            for of in psutil.net_if_addrs().values()
            for one in of
            if one.family == socket.AF_INET
        }
        assert {parts.hostname for parts in printed} == own
        for parts in printed:
            assert server.ask(at=str(parts.hostname))[0] == 200
            assert server.ask(at=str(parts.hostname), root="/")[0] == 403
        for name, status in (
            (socket.gethostname(), 200),
            ("192.0.2.1", 200),
            ("evil.example", 403),
        ):
            assert server.ask(Host=f"{name}:{server.port}")[0] == status
    for host in ("localhost", "::1"):  # names of the own machine are not open to others
        with watching(tmp_path, "s", "--host", host) as server:
            assert "nothing is encrypted" not in server.log.read_text()
            assert server.ask(at=host)[0] == 200


def renewed(server: Server) -> Any:
    """Return the document of a study, as a page that is loaded again gets it."""
    server.ask()
    return orjson.loads(server.ask("document.json")[1])


@pytest.mark.full
@pytest.mark.parametrize("words", [(), ("--beside",)])
def test_a_reader_who_connects_again_gets_what_was_missed(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """A new curve has the times that the whole page has, which may be left out."""
    study = write_study(tmp_path / "s", local_batches=(8,), num_workers=(1,))
    with watching(tmp_path, "s", *words) as server:
        told = renewed(server)
        path = f"events?report={told['version']}"
        with server.events(path) as news, server.events(path, "document") as documents:
            assert next(documents) == {"version": told["version"], "problem": ""}
            first = next(news)
        assert first["points"] == []
        run = write_run(study, local_batch=16, meta={**META, "beside_others": True})
        missed = {"Last-Event-ID": str(first["version"])}
        with server.events(path, **missed) as news, server.events(path, "curves", **missed) as of:
            while not (points := next(news)["points"]):
                pass  # the server has not looked since
            assert [point["run_id"] for point in points] == [run.name]
            (curve,) = next(of).items()
        # A document may have read the run before its first epoch.
        wait_for(lambda: run.name in renewed(server)["runs"]["run_id"], server.process, PATIENCE)
        document = renewed(server)
        place = document["runs"]["run_id"].index(run.name)
        assert curve == (run.name, document["curves"][place])
        assert (None in curve[1]["seconds"]) == (not words)
        with server.events(path, "document", **missed) as documents:
            assert next(documents)["version"] > first["version"]
        assert server.ask("events?report=x")[0] == 400


def new_page(browser: Any) -> Any:
    page = browser.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    return page


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true in a page, whose policy forbids Playwright's own way."""
    wait_for(lambda: page.evaluate(expression), None, PATIENCE, lambda: page.inner_text("body"))


def until_renewed(server: Server, page: Any) -> None:
    """Wait until a page shows a newer document than that of the version `wanted`."""
    ends = time.monotonic() + PATIENCE
    while not page.evaluate(UPDATED):
        assert time.monotonic() < ends, page.inner_text("body")
        server.ask()  # a page that is loaded renews the document of all
        page.wait_for_timeout(1000)


@pytest.mark.full
def test_an_open_page_grows_and_leaves_what_its_reader_opened(tmp_path: Path, browser: Any) -> None:
    study = write_study(tmp_path / "s", local_batches=tuple(range(8, 136, 8)), num_workers=(1,))
    failed = write_run(study, local_batch=512, status="failed", message="no\n" * 60)
    run = write_run(study, local_batch=256, status=None, num_epochs_done=2)
    said: list[str] = []
    with claimed(claim_of_run(run)), watching(tmp_path, "s") as server:
        page = new_page(browser)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"{server.address}#run={failed.name}")
        page.wait_for_selector("body[data-drawn]")
        until(page, "byId('live').textContent.includes('1 running')")
        page.evaluate(
            "for (const one of document.querySelectorAll('#run details')) one.open = true"
        )
        page.evaluate("scrollTo(0, 300); document.querySelector('#run pre').scrollTop = 40")
        state = (
            "[[...document.querySelectorAll('#run details')].map((one) => one.open), scrollY,"
            " document.querySelector('#run pre').scrollTop]"
        )
        before = page.evaluate(state)
        assert before == [[True, True], 300, 40]
        page.evaluate("wanted = study.version; void 0")
        evaluation = Evaluation(
            epoch=3, num_steps=500, num_examples=9_000, epochs_done=2.5, train_seconds=900.0,
            test_loss=0.25, test_accuracy=0.75,
        )  # fmt: skip
        record = {"schema": 1, "time": time.time(), **asdict(evaluation)}
        with RunPaths(run).metrics.open("a") as file:
            file.write(json.dumps(record) + "\n")
        until(page, "study.curves.some((curve) => curve.epochs.at(-1) === 2.5)")
        write_run(study, local_batch=1024)
        until_renewed(server, page)
        assert page.evaluate(state) == before
        page.evaluate("go({ run: '' })")
        until(page, "document.body.dataset.drawn")
        page.click('details[data-menu="global_batch"] summary')
        page.type('details[data-menu="global_batch"] input', "16")
        page.evaluate("wanted = study.version; void 0")
        write_run(study, local_batch=2048)
        until_renewed(server, page)
        assert page.evaluate("document.activeElement.value") == "16"
        assert page.evaluate("document.activeElement.closest('details').open")
        page.goto(f"{server.address}points/")
        until(page, "document.body.innerText.includes('2.5 of 3')")
        told = page.inner_text(f"tbody tr:has-text('{run.name}')").split("\t")
        assert told[:5] == [run.name, "running", "2.5 of 3", "0.75", "0.25"]
        page.close()
    assert said == []


@pytest.mark.full
def test_a_page_of_an_earlier_server_says_what_to_do(tmp_path: Path, browser: Any) -> None:
    write_study(tmp_path / "s", local_batches=(8,), num_workers=(1,))
    pages = [new_page(browser) for _ in range(2)]
    with watching(tmp_path, "s") as server:
        port = str(server.port)
        for page, path in zip(pages, ("", "points/"), strict=True):
            page.goto(server.address + path)
            until(page, "document.body.innerText.includes('completed')")
    for page in pages:
        until(page, "document.body.innerText.includes('does not answer')")
    with watching(tmp_path, "s", "--port", port):
        for page in pages:
            until(page, "document.body.innerText.includes('Open the address that it has printed')")
    for page in pages:
        page.close()
