"""Must hold: unmodified official clients of Python and Node get the right content for each feature that they have,
streamed and not, from a daemon with the real engine. The table is printed at the end."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path

import ollama
import pytest

from tests.engine.conftest import DirectEngine, RealEngine, copy_store
from tests.engine.matrix.cells import APIS, LANGUAGES, Bench, Cell, Feature
from tests.engine.matrix.clients import Clients, NodeClients, PythonClients, why_no_node
from tests.engine.matrix.features import FEATURES
from tests.engine.matrix.prompts import SMALL_MODEL, SMALL_WINDOW, TOOLS_MODEL
from tests.engine.matrix.table import Place
from tests.fakes.daemon import DaemonProcess

TEMPLATE = Path(__file__).with_name("matrix") / "tools.jinja"

CELLS = [
    (feature, language, api, stream)
    for feature in FEATURES
    for api in APIS
    for language in LANGUAGES
    for stream in feature.streams
    if feature.has(language, api)
]


def _id(cell: tuple[Feature, str, str, bool]) -> str:
    feature, language, api, stream = cell
    return f"{feature.name}-{language}-{api}-{'stream' if stream else 'whole'}".replace(" ", "_")


@pytest.fixture(scope="module")
def bench(
    engine: RealEngine, pulled: Path, direct: DirectEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """One daemon for all cells."""
    folder = tmp_path_factory.mktemp("matrix")
    copy_store(pulled, folder / "models")
    settings = {"ENGINE": engine.setting, "CONTEXT_LENGTH": 8192, "MAX_LOADED_MODELS": 4}
    daemon = DaemonProcess(folder, settings).start()
    try:
        with ollama.Client(daemon.url) as client:
            client.create(TOOLS_MODEL, from_="smollm2", template=TEMPLATE.read_text())
            # Of the other file: one engine serves all models of a file, and may have a larger window.
            client.create(SMALL_MODEL, from_="other", parameters={"num_ctx": SMALL_WINDOW})
        with ExitStack() as stack:
            clients: dict[str, Clients] = {"python": stack.enter_context(PythonClients(daemon.url))}
            if why_no_node() is None:
                clients["node"] = stack.enter_context(NodeClients(daemon.url))
            yield Bench(daemon, clients, direct)
    finally:
        daemon.stop()


@pytest.mark.parametrize("cell", CELLS, ids=_id)
def test_cell(
    cell: tuple[Feature, str, str, bool], bench: Bench, request: pytest.FixtureRequest, engine: RealEngine
) -> None:
    feature, language, api, stream = cell
    place = Place(engine.name, language, feature.name, api, stream, CELLS.index(cell))
    request.node.user_properties.append(("matrix", astuple(place)))
    if language == "node" and (reason := why_no_node()):
        pytest.skip(reason)
    feature.check(Cell(feature.name, language, api, stream, bench))
