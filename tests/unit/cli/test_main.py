"""The frame of the command line: errors, hints, exit codes, help, and what each verb imports."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import click
import pytest

from gemlet.cli import main, messages, options
from gemlet.daemon import history_store
from gemlet.errors import ConfigError, GemletError, Refused


@pytest.fixture(autouse=True)
def no_daemon(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMLET_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def failing(monkeypatch):
    def install(error):
        @click.command()
        def command():
            raise error

        monkeypatch.setitem(main.VERBS, "fail", ("tests_failing:command", "Fail"))
        monkeypatch.setitem(sys.modules, "tests_failing", type(sys)("tests_failing"))
        sys.modules["tests_failing"].command = command

    return install


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (GemletError("it broke", hint="mend it"), 125, "error: it broke\n\nhint: mend it\n"),
        (Refused("no"), 125, "error: no\n"),
        (ConfigError("bad share", path="a.toml", line=3, column=7), 125, "error: a.toml:3:7: bad share\n"),
        (KeyboardInterrupt(), 130, "\n"),  # click ends the line that has ^C in it,
    ],
)
def test_errors(failing, capsys, error, code, printed):
    failing(error)
    assert main.run(["fail"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == printed


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["trace", "team", "2h"], "error: TIME is 7200 s: expected an hour or less, such as 10s\n"),
        (["completion"], "error: missing argument 'SHELL'. Choose from: bash, zsh, fish\n"),
    ],
)
def test_messages_of_click_in_one_line(arguments, printed, capsys):
    assert main.run(arguments) == 2
    assert capsys.readouterr().err.partition("\n\n")[0] + "\n" == printed


def test_a_missing_native_module_is_an_error_with_a_hint(failing, capsys):
    failing(ModuleNotFoundError("No module named 'gemlet._native'", name="gemlet._native"))
    assert main.run(["fail"]) == 125
    assert capsys.readouterr().err == (
        "error: gemlet._native cannot be loaded: No module named 'gemlet._native'\n\n"
        "hint: reinstall gemlet, or build it with `make native`\n"
    )


def test_any_other_missing_module_is_a_defect(failing):
    failing(ModuleNotFoundError("No module named 'gemlet.nothing'", name="gemlet.nothing"))
    with pytest.raises(ModuleNotFoundError):
        main.run(["fail"])


def test_an_optional_argument_has_no_brackets_in_an_error(capsys):
    assert main.run(["trace", "group", "3"]) == 2
    assert "invalid value for 'TIME': '3'" in capsys.readouterr().err


def test_did_you_mean(capsys):
    assert main.run(["statsu"]) == 2
    assert "status" in capsys.readouterr().err


def test_unknown_option_names_the_nearest(capsys):
    assert main.run(["run", "--memroy", "1GiB", "--", "true"]) == 2
    assert "--memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["run"], ["run", "--min", "140%", "--", "true"], ["run", "--memory", "x", "true"]]
)
def test_usage_errors(capsys, arguments):
    assert main.run(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "hint: " in err


def test_a_wrong_value_says_what_to_write_instead(capsys):
    assert main.run(["run", "--min", "30%%", "--", "true"]) == 2
    error, hint = capsys.readouterr().err.split("\n\n")
    assert error == (
        "error: invalid value for '--min': '30%%' is not a share: "
        "expected a number from 0 to 1, or a percentage such as 30%"
    )
    assert hint.startswith("hint: write ")


@pytest.mark.parametrize(
    ("arguments", "shown"), [(["statsu"], "commands"), (["mps", "begin"], "commands"), (["--x"], "options")]
)
def test_the_hint_names_what_help_shows(capsys, arguments, shown):
    assert main.run(arguments) == 2
    assert f"shows the {shown}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--sm", "0", "--", "true"], "above 0 and at most 1"),
        (["run", "--group", "", "--", "true"], "the name is empty"),
        (["run", "--group", "x" * 256, "--", "true"], "256 bytes"),
        (["run", "--group", "a\nb", "--", "true"], "unprintable"),
        (["run", "--group", "--", "true"], "looks like an option"),
        (["explain", ""], "the name is empty"),
        (["set", "team"], "nothing to change"),
        (["set", "team", "--weight", "1e9"], "--weight"),
        (["daemon", "--system", "--simulate"], "--system"),
    ],
)
def test_nonsense_is_refused_before_any_daemon_is_asked(capsys, arguments, said):
    assert main.run(arguments) == 2
    assert said in capsys.readouterr().err


def test_an_option_of_all_verbs_stands_before_the_verb(capsys):
    assert main.run(["mps", "status", "--socket", "x"]) == 2
    assert "hint: put it before the verb: gemlet --socket PATH mps status\n" in capsys.readouterr().err


def test_the_simulated_machine_is_asked_for_after_the_verb(capsys):
    assert main.run(["--simulate", "status"]) == 2
    assert "put it after the verb: gemlet status --simulate" in capsys.readouterr().err
    assert main.run(["mps", "--simulate", "start"]) == 2
    assert "put it at the end: gemlet mps COMMAND --simulate" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["doctor", "serve"])
def test_a_verb_without_the_simulated_machine_says_so(capsys, verb):
    assert main.run([verb, "--simulate"]) == 2
    said = capsys.readouterr().err
    assert f"hint: leave it out: `gemlet {verb}` is the same with and without a simulated machine\n" in said
    assert "mean" not in said, "no other option is like it"


def test_all_errors_of_a_file_are_printed(capsys, tmp_path):
    path = tmp_path / "gemlet.toml"
    path.write_text("[groups.a]\nmin = 30\nmemroy = 1\n")
    assert main.run(["daemon", "--config", str(path)]) == 125
    err = capsys.readouterr().err
    assert f"error: {path}:2:7: " in err
    assert f"\n\nerror: {path}:3:1: " in err


def test_a_place_that_cannot_be_written_is_an_error_not_a_traceback(failing, capsys, monkeypatch):
    monkeypatch.setattr(main, "_drop_output", lambda: None)
    failing(FileNotFoundError(2, "No such file or directory", "/not/here.svg"))
    assert main.run(["fail"]) == 125
    assert capsys.readouterr().err == "error: /not/here.svg: No such file or directory\n"


def test_colour_only_on_a_terminal_and_without_no_color(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in messages.coloured("error:", "red")
    monkeypatch.setenv("NO_COLOR", "")
    assert messages.coloured("error:", "red") == "error:"


def test_overview_lists_every_verb_without_importing_one(capsys):
    assert main.run(["-h"]) == 0
    shown = capsys.readouterr().out
    for name, (_, line) in main.VERBS.items():
        assert name in shown
        assert line in shown


@pytest.mark.parametrize("verb", list(main.VERBS))
def test_every_verb_has_help_with_an_example(capsys, verb):
    assert main.run([verb, "-h"]) == 0
    assert f"gemlet {verb}" in capsys.readouterr().out.split("\n\n", 1)[1]


@pytest.mark.parametrize("verb", list(main.VERBS))
def test_every_verb_can_be_imported(verb):
    module, _, attribute = main.VERBS[verb][0].partition(":")
    assert isinstance(getattr(importlib.import_module(module), attribute), click.Command)


@pytest.mark.parametrize(("verb", "arguments"), [("run", ["--", "true"]), ("set", ["team"])])
@pytest.mark.parametrize("option", ["min", "max", "memory", "priority", "sm"])
def test_options_from_the_environment(monkeypatch, capsys, verb, arguments, option):
    monkeypatch.setenv(f"GEMLET_{verb}_{option}".upper(), "?!")
    assert main.run([verb, *arguments]) == 2
    assert f"--{option}" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(capsys, shell):
    assert main.run(["completion", shell]) == 0
    assert "_GEMLET_COMPLETE" in capsys.readouterr().out


def test_run_imports_only_click_and_the_standard_library():
    program = (
        "import sys; before = set(sys.modules); import gemlet.cli.main, gemlet.cli.run;"
        "import json; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names))))"
    )
    script = f"import sys; sys.path[:0] = {sys.path!r}; {program}"
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) <= {"gemlet", "click", "__main__", "__mp_main__"}


def test_alone_it_shows_the_overview_and_no_error(capsys):
    assert main.run([]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("Usage: gemlet")
    assert "error:" not in printed
    assert "hint:" not in printed


@pytest.mark.parametrize("verb", [["run"], ["set", "g"]])
def test_a_minimum_above_the_maximum_is_refused_before_a_daemon_is_asked(tmp_path, monkeypatch, capsys, verb):
    monkeypatch.setenv("GEMLET_RUNTIME_DIR", str(tmp_path))
    program = ["--", "true"] if verb == ["run"] else []
    assert main.run([*verb, "--simulate", "--min", "80%", "--max", "50%", *program]) == 2
    assert "error: --min 80% is more than --max 50%\n" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ask", [["history"], ["report", "g"]])
@pytest.mark.parametrize(("since", "taken"), [("90d", True), ("7776001s", False), ("1000000000s", False)])
def test_nobody_asks_for_what_is_older_than_the_recorded_history(capsys, ask, since, taken):
    assert main.run([*ask, "--since", since]) == (125 if taken else 2)
    printed = capsys.readouterr().err
    assert ("expected 90 days or less" in printed) is not taken
    assert ("no daemon at" in printed) is taken
    assert "hint: " in printed
    assert history_store.TIERS[-1].keep == options.LONGEST_BACK_S


@pytest.mark.parametrize("simulate", [[], ["--simulate"]])
def test_the_hint_without_a_daemon_is_for_the_machine_that_was_meant(tmp_path, monkeypatch, capsys, simulate):
    monkeypatch.setenv("GEMLET_RUNTIME_DIR", str(tmp_path))
    assert main.run(["history", *simulate]) == 125
    assert f"hint: start one with `gemlet run{' --simulate' * bool(simulate)} -- COMMAND`" in capsys.readouterr().err
    assert main.run(["stop", *simulate]) == 125
    assert "nothing to stop" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "models", "--drain", "nan"],
        ["serve", "models", "--drain", "-1"],
        ["serve", "models", "--hang", "0"],
        ["profile", "--budget", "inf"],
    ],
)
def test_an_invalid_time(capsys, arguments):
    assert main.run(arguments) == 2
    assert "is not a number of seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (["demo", "--seconds", "0"], "'0' is not a valid number: expected 3 or more", "write one such as 3"),
        (["demo", "--seconds", "soon"], "'soon' is not a valid number: expected 3 or more", "write one such as 3"),
        (["demo", "--seconds", "nan"], "'nan' is not a valid number: expected 3 or more", "write one such as 3"),
        (["infer", "lenet1", "--batch", "0"], "'0' is not a valid whole number: expected 1 or more", "such as 1"),
        (["infer", "lenet1", "--seed", "1.5"], "'1.5' is not a valid whole number: expected a", "such as 1"),
        (["mps", "stop", "-t", "0"], "'0' is not a valid whole number: expected from 1 to 86400", "such as 1"),
    ],
)
def test_numbers_out_of_bounds_are_refused_in_words(capsys, arguments, said, hint):
    assert main.run(arguments) == 2
    error, _, hinted = capsys.readouterr().err.partition("hint: ")
    assert said in error
    assert hint in hinted


def test_no_option_has_numbers_of_clicks_own():
    """Their errors say `x>=3`."""

    def numbers(command):
        for each in getattr(command, "commands", {}).values():
            yield from numbers(each)
        yield from (p for p in command.params if isinstance(p.type, (type(click.INT), type(click.FLOAT))))

    for verb in main.VERBS:
        command = main.command.get_command(click.Context(main.command), verb)
        own = [p.name for p in numbers(command) if not isinstance(p.type, (options.Whole, options.Number))]
        assert not own, verb


def test_help_says_bounds_in_words(capsys):
    assert main.run(["demo", "--help"]) == 0
    assert "3 or more" in capsys.readouterr().out


def test_a_simulation_of_no_time(capsys, tmp_path):
    (tmp_path / "w.toml").touch()
    assert main.run(["simulate", str(tmp_path / "w.toml"), "--duration", "0s"]) == 2
    assert main.run(["simulate", "--serve", str(tmp_path / "w.toml"), "--duration", "0s"]) == 2
    assert capsys.readouterr().err.count("0s is not a valid length") == 2


def test_a_grid_of_nothing(capsys):
    assert main.run(["plan", "demands.toml", "--grid", "0"]) == 2
    assert "--grid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "hint"), [("0", "such as 8GiB"), ("3", "such as 3GiB"), ("100KiB", "such as 8GiB"), ("8192", "as 8GiB")]
)
@pytest.mark.parametrize("verb", [["run", "--memory", "{}", "--", "true"], ["set", "g", "--resident", "{}"]])
def test_a_limit_without_its_unit_is_refused(capsys, verb, size, hint):
    assert main.run([word.format(size) for word in verb]) == 2
    said = capsys.readouterr().err
    assert "expected 1 MiB or more" in said
    assert hint in said


@pytest.mark.parametrize(("word", "meant"), [("ps", "status"), ("ls", "status"), ("start", "run"), ("kil", "")])
def test_words_of_other_tools_lead_to_the_verb(capsys, word, meant):
    assert main.run([word]) == 2
    said = capsys.readouterr().err
    assert meant in said
    assert "mps" not in said


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(capsys, option):
    assert main.run([option]) == 0
    assert capsys.readouterr().out.startswith("gemlet ")


def test_top_does_not_leave_one_of_two_outputs_out(capsys):
    assert main.run(["top", "--once", "--screenshot", "x.svg"]) == 2
    assert "do not go together" in capsys.readouterr().err
