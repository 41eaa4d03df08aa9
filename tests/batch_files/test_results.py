"""Lines of the output: OpenAI's form, and what two runs of a batch have in common."""

import json
from typing import Any

from karat.batch_files.journal import BatchAnswer
from karat.batch_files.lines import BatchRequest, Fault, LineReading
from karat.batch_files.results import fault_line, result_line, without_times

BARE_CALL = {"type": "function", "function": {"name": "f", "arguments": '{"id": 5}'}}
CALL = {"id": "call_1", **BARE_CALL}
CHAT = {
    "id": "chatcmpl-1",
    "created": 17,
    "choices": [{"index": 0, "message": {"content": None, "tool_calls": [CALL]}}],
    "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0}},
    "timings": {"prompt_ms": 1.5},
    "karat": {"seed": 4},
}
MESSAGE = {
    "id": "msg-1",
    "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"id": 5, "created": 6}}],
    "usage": {"input_tokens": 1, "cache_read_input_tokens": 8, "output_tokens": 2},
}
RESPONSE = {
    "id": "resp-1",
    "created_at": 1,
    "completed_at": 2,
    "output": [{"type": "function_call", "id": "fc-1", "call_id": "call_1", "arguments": '{"call_id": 5}'}],
    "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 8}},
}


def request() -> BatchRequest:
    made = LineReading({}).line(1, {"custom_id": "a", "prompt": "x"})
    assert isinstance(made, BatchRequest)
    return made


def test_what_differs_between_runs_is_left_out() -> None:
    chat, message, response = (without_times(json.loads(json.dumps(each))) for each in (CHAT, MESSAGE, RESPONSE))
    assert chat == {
        "choices": [{"index": 0, "message": {"content": None, "tool_calls": [BARE_CALL]}}],
        "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"audio_tokens": 0}},
        "karat": {"seed": 4},
    }
    assert message == {
        "content": [{"type": "tool_use", "name": "f", "input": {"id": 5, "created": 6}}],
        "usage": {"input_tokens": 9, "output_tokens": 2},
    }
    assert response == {
        "output": [{"type": "function_call", "arguments": '{"call_id": 5}'}],
        "usage": {"input_tokens": 9, "input_tokens_details": {}},
    }


def test_lines() -> None:
    answer = BatchAnswer(200, "req_1", json.dumps(CHAT).encode())
    whole: dict[str, Any] = json.loads(result_line(request(), answer, times=True))
    assert (whole["custom_id"], whole["error"]) == ("a", None) and whole["id"].startswith("batch_req_")
    assert whole["response"] == {"status_code": 200, "body": CHAT, "request_id": "req_1"}
    bare = json.loads(result_line(request(), answer, times=False))
    assert bare["id"] == whole["id"] and "request_id" not in bare["response"]
    assert json.loads(fault_line(Fault(3, None, "invalid_json", "line 3: no JSON"))) == {
        "id": "batch_line_3",
        "custom_id": None,
        "response": None,
        "error": {"code": "invalid_json", "message": "line 3: no JSON"},
    }
