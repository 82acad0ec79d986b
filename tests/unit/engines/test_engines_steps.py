import pytest

from daemon.engines.steps import Step, failure, parse

NINJA = [
    "[1/4] Building CXX object a.o",
    "[2/4] Building CXX object b.o",
    "FAILED: [code=1] b.o",
    "/usr/bin/c++ -Werror -o b.o -c b.cpp",
    "In file included from b.h:1:",
    "b.cpp:3:5: error: 'x' was not declared in this scope",
    "    3 |     x = 1;",
    "      |     ^",
    "[3/4] Building CXX object c.o",
    "c.cpp:1:1: warning: unused",
    "ninja: build stopped: subcommand failed.",
]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[12/216] Building CXX object a.o", Step(12, 216, "Building CXX object a.o")),
        ("[  7%] Building CXX object a.o", Step(7, 100, "Building CXX object a.o")),
        ("[100%] Built target llama-server", Step(100, 100, "Built target llama-server")),
        ("-- Configuring done", None),
        ("a.cpp: [1/2] in a message", None),
    ],
)
def test_progress_of_ninja_and_of_make(line: str, expected: Step | None) -> None:
    assert parse(line) == expected


def test_the_failed_step_of_ninja_from_its_error_on() -> None:
    assert failure(NINJA) == NINJA[5:8]


def test_a_failed_step_that_says_nothing_is_named() -> None:
    lines = ["FAILED: b.o", "c++ -o b.o", "ninja: build stopped: subcommand failed."]
    assert failure(lines) == ["FAILED: b.o"]


def test_a_failed_step_without_a_known_word_is_shown_to_its_end() -> None:
    said = [f"line {number}" for number in range(50)]
    assert failure(["FAILED: b.o", "c++", *said, "ninja: build stopped"]) == said[-20:]


def test_an_error_of_cmake() -> None:
    lines = [
        "-- Found Git",
        "CMake Error at CMakeLists.txt:3 (message):",
        "  CUDA Toolkit not found",
        "",
        "-- Done",
    ]
    assert failure(lines) == [
        "CMake Error at CMakeLists.txt:3 (message):",
        "  CUDA Toolkit not found",
        "-- Done",
    ]


def test_the_linkers_reason_inside_an_error_of_cmake() -> None:
    lines = [
        "CMake Error at X:1 (message):",
        *["  noise"] * 30,
        "  /usr/bin/ld: cannot find -lcudart_static",
        "  end",
    ]
    assert failure(lines) == ["  /usr/bin/ld: cannot find -lcudart_static", "  end"]


def test_an_architecture_that_nvcc_does_not_know() -> None:
    lines = [
        "FAILED: fill.cu.o",
        "nvcc -c fill.cu",
        "nvcc fatal   : Unsupported gpu architecture 'compute_50'",
    ]
    assert failure(lines) == lines[2:]


def test_an_error_of_make() -> None:
    lines = ["[ 50%] Building CXX object b.o", "b.cpp:1: error: no", "make[2]: *** [b.o] Error 1"]
    assert failure(lines) == lines[1:]


def test_at_most_twenty_lines_are_shown() -> None:
    assert len(failure(["FAILED: b.o", "c++", *["b.cpp:1: error: no"] * 99])) == 20
