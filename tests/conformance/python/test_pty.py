"""Commands with a terminal: size, resize, merged output, end of input."""

import signal

import pytest

from clients.agent import connected
from clients.execution import Execution

pytestmark = pytest.mark.release("agent_client")


#= carrel.commands.terminal-size-resized-echoing
async def test_a_terminal_has_the_requested_size(agentd):
    async with connected(agentd) as agent:
        execution = await Execution.start(agent, "stty", "size", tty=True, rows=41, cols=133)
        outcome = await execution.finish()
    assert (outcome.stdout, outcome.stderr, outcome.exited) == (b"41 133\r\n", b"", {"code": 0})


#= carrel.commands.terminal-size-resized-echoing
async def test_a_resize_changes_the_size_and_signals_the_command(agentd):
    # Each read ends with a line, so the order does not depend on the scheduler.
    script = "trap 'echo resized $(stty size)' WINCH; stty -echo; stty size; read go; stty size; exit 5"
    async with connected(agentd) as agent:
        execution = await Execution.start(agent, "sh", "-c", script, tty=True, rows=24, cols=80)
        await execution.until(lambda: execution.stdout == b"24 80\r\n")
        await execution.resize(33, 101)
        # A shell may run its trap at once or after the line was read; both print the new size first.
        await execution.write(b"\n")
        outcome = await execution.finish()
    assert outcome.stdout == b"24 80\r\nresized 33 101\r\n33 101\r\n"
    assert outcome.exited == {"code": 5}


async def test_a_terminal_merges_stdout_and_stderr(agentd):
    async with connected(agentd) as agent:
        script = "echo out; echo err >&2; test -t 0 && test -t 1 && test -t 2"
        execution = await Execution.start(agent, "sh", "-c", script, tty=True)
        outcome = await execution.finish()
    assert (outcome.stdout, outcome.stderr, outcome.exited) == (b"out\r\nerr\r\n", b"", {"code": 0})


#= carrel.commands.terminal-size-resized-echoing
async def test_a_terminal_echoes_input_and_control_d_ends_it(agentd):
    async with connected(agentd) as agent:
        execution = await Execution.start(agent, "cat", tty=True)
        await execution.write(b"hello\n")
        await execution.until(lambda: execution.stdout == b"hello\r\nhello\r\n")
        await execution.write(b"\x04")
        outcome = await execution.finish()
    assert (outcome.stdout, outcome.exited) == (b"hello\r\nhello\r\n", {"code": 0})


async def test_control_c_interrupts_the_foreground_command(agentd):
    async with connected(agentd) as agent:
        execution = await Execution.start(agent, "sh", "-c", "stty -echo; echo up; exec sleep 60", tty=True)
        await execution.until(lambda: execution.stdout == b"up\r\n")
        await execution.write(b"\x03")
        outcome = await execution.finish()
    assert outcome.exited == {"code": -1, "signal": int(signal.SIGINT)}


async def test_a_signal_reaches_a_command_with_a_terminal(agentd):
    async with connected(agentd) as agent:
        execution = await Execution.start(agent, "sh", "-c", "echo up; exec sleep 60", tty=True)
        await execution.until(lambda: execution.stdout == b"up\r\n")
        await execution.signal(signal.SIGTERM)
        outcome = await execution.finish()
    assert outcome.exited == {"code": -1, "signal": int(signal.SIGTERM)}


async def test_an_empty_input_message_does_not_close_a_terminal(agentd):
    async with connected(agentd) as agent:
        execution = await Execution.start(agent, "sh", "-c", "stty -echo; echo up; read line; echo got $line", tty=True)
        await execution.until(lambda: execution.stdout == b"up\r\n")
        await execution.end_input()
        await execution.write(b"still here\n")
        outcome = await execution.finish()
    assert (outcome.stdout, outcome.exited) == (b"up\r\ngot still here\r\n", {"code": 0})
