"""A GPU that fails in a server's engine: the engine ends with an exit code of its own, and another one is started.

Covers: karat.engine.remote.process, karat.engine.remote.worker, karat.server.keeper.
"""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from karat import AsyncLLM, SamplingParams
from karat.children import starter
from karat.engine.remote import process as async_process
from karat.errors import DeviceLostError, EngineDiedError
from karat.ops.device import missing
from karat.ops.native import unavailable_reason
from karat.server.errors import ApiError
from karat.server.keeper import Keeper
from tests.engine.tiny import write_model

if reason := unavailable_reason() or missing("cuda-emulated"):
    pytest.skip(f"no emulated GPU: {reason}", allow_module_level=True)

# The process of an engine whose GPU fails in the step after the file appears, as a driver reports it.
WORKER = """
from pathlib import Path
from karat import _emulated
from karat.engine.remote import worker
from karat.ops.device_plan import DevicePlan

read = DevicePlan._read
fault = Path({fault!r})

def read_or_fail(self, *given):
    if fault.exists():
        fault.unlink()
        raise _emulated.DeviceError("an illegal memory access was encountered")
    return read(self, *given)

DevicePlan._read = read_or_fail
main = worker.main
"""
GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


def test_the_keeper_starts_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, fault = write_model(tmp_path, num_hidden_layers=1), tmp_path / "fault"
    (tmp_path / "worker_of_a_test.py").write_text(WORKER.format(fault=str(fault)))
    monkeypatch.setattr(starter, "ROOT", str(tmp_path))
    monkeypatch.setattr(async_process, "MODULE", "worker_of_a_test")

    async def serve() -> None:
        keeper = Keeper(lambda: AsyncLLM.open(folder, device="cuda-emulated"))
        opened = asyncio.Event()
        keeping = asyncio.create_task(keeper.run(lambda _: opened.set()))
        await asyncio.wait_for(opened.wait(), 60)
        llm = keeper.llm
        want = await llm.generate("a", GREEDY)
        process = llm._engine.process
        assert isinstance(process, async_process.EngineProcess)

        fault.touch()
        said = r"a step: the GPU emulation failed \(an illegal memory access was encountered\); start again"
        with pytest.raises(EngineDiedError, match=said):
            await llm.generate("a", GREEDY)
        assert isinstance(llm.failure, DeviceLostError) and process._process.returncode == DeviceLostError.exit_code
        with pytest.raises(ApiError, match=rf"{said}.*; it is being started again") as refused:
            keeper.llm  # noqa: B018
        assert (refused.value.status, refused.value.code) == (503, "engine_died")

        async with asyncio.timeout(60):
            while keeper.has_died:
                await asyncio.sleep(0.02)
        assert keeper.llm is llm and llm.process_id != process.process_id
        assert (await llm.generate("a", GREEDY)).outputs == want.outputs
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping

    asyncio.run(serve())
