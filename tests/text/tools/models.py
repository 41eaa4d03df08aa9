"""Tokenizers of bytes with templates: real ones of released models, and short ones in the form of others."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from karat.text import Tokenizer

SMOLLM = """{%- for message in messages %}
{%- if loop.first and tools %}<|im_start|>system
Give the calls as <tool_call>[{"name": "func_name1", "arguments": {"argument1": "value1"}}]</tool_call>.
{{ tools | tojson }}<|im_end|>
{% endif -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
PYTHONIC = """{%- for message in messages %}
{%- if loop.first and tools %}<|start|>system<|end_of_header|>
Answer with [func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)].
{{ tools | tojson }}<|end|>{% endif -%}
<|start|>{{ message.role }}<|end_of_header|>

{% if message.tool_calls %}[{% for call in message.tool_calls %}{{ call.function.name }}(
{%- for name, value in call.function.arguments.items() %}{{ name }}={{ value | tojson }}
{%- if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}{% endfor %}]
{%- else %}{{ message.content }}{% endif %}<|end|>
{%- endfor %}{% if add_generation_prompt %}<|start|>assistant<|end_of_header|>

{% endif %}"""
HERMES = r"""{%- for message in messages %}
{%- if loop.first and tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call them as <tool_call>
{"name": NAME, "arguments": ARGUMENTS}
</tool_call>.<|im_end|>
{% endif -%}
<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- "\n<tool_call>\n" }}{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
{{- "\n</tool_call>" }}
{%- endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking %}<think>
{% endif %}{% endif %}"""
# In the form of gpt-oss: one place for instructions, one call a message, a text or a thought beside it.
HARMONY = """<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>
{%- set first = messages[0].role in ['system', 'developer'] %}
{%- if first or tools %}<|start|>developer<|message|>{{ messages[0].content if first }}
{%- for tool in tools or [] %}
{{- '\n// ' + tool.function.description }}
type {{ tool.function.name }} = {{ tool.function.parameters | tojson }};
{%- endfor %}<|end|>{% endif %}
{%- set seen = namespace(call=none, answer=-1) %}
{%- for message in messages %}{% if message.role == 'assistant' and not message.tool_calls %}
{%- set seen.answer = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'user' %}<|start|>user<|message|>{{ message.content }}<|end|>
{%- elif message.role == 'tool' %}
{%- if not seen.call %}{{ raise_exception('a result without a call') }}{% endif -%}
<|start|>functions.{{ seen.call }} to=assistant<|channel|>commentary<|message|>{{ message.content | tojson }}<|end|>
{%- elif message.tool_calls %}
{%- if message.content and message.thinking %}{{ raise_exception('a text and a thought') }}{% endif %}
{%- if (message.content or message.thinking) and loop.index0 > seen.answer -%}
<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking or message.content }}<|end|>
{%- endif %}
{%- set seen.call = message.tool_calls[0].function.name -%}
<|start|>assistant to=functions.{{ seen.call }}<|channel|>commentary json<|message|>
{{- message.tool_calls[0].function.arguments | tojson }}<|call|>
{%- elif message.role == 'assistant' -%}
<|start|>assistant<|channel|>final<|message|>{{ message.content }}
{{- '<|end|>' if add_generation_prompt or not loop.last else '<|return|>' }}
{%- set seen.call = none %}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
MESSAGES = (
    "<|start|> <|channel|> <|constrain|> <|message|> <|end|> <|call|> <|return|>".split()
)  # the tokens of HARMONY
PLAIN = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(template: str | None = None, special: Sequence[str] = (), added: Sequence[str] = ()) -> Tokenizer:
    """The 256 bytes in the order of the byte-level alphabet, then the special tokens, then other added ones."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(list(special))
    backend.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in added])
    config = {"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        backend.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({key: value for key, value in config.items() if value is not None}), encoding="utf-8"
        )
        return Tokenizer.from_folder(folder)


# Made by hand after the formats of OLMo 3 and EXAONE 4, of which no template is at hand.
OLMO = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'system' or (loop.first and tools) %}
{{- '<functions>' + (tools or []) | tojson + '</functions>\\n' }}
{%- endif %}
{{- message.content or '' }}
{%- if message.tool_calls %}
{{- '<function_calls>' }}
{%- for call in message.tool_calls %}
{{- call.function.name + '(' }}
{%- for key, value in call.function.arguments.items() %}
{{- key + '=' + value | tojson }}{{ ', ' if not loop.last }}
{%- endfor %}
{{- ')' }}{{ '\\n' if not loop.last }}
{%- endfor %}
{{- '</function_calls>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
EXAONE = """{%- if tools %}
{{- '[|system|]\\n# Available Tools\\n' }}
{%- for tool in tools %}{{ '<tool>' + tool | tojson + '</tool>\\n' }}{% endfor %}
{{- '[|endofturn|]\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '[|' + message.role + '|]\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}
{{- '[|endofturn|]\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '[|assistant|]\\n' + ('<think>\\n' if enable_thinking else '<think>\\n\\n</think>\\n\\n') }}
{%- endif %}"""
# After Phi-4-mini's, which reads tools of the system message and writes no calls; it is not at hand.
PHI4_MINI = """{%- for message in messages %}
{%- if message.role == 'system' and 'tools' in message and message.tools is not none %}
{{- '<|system|>' + message.content + '<|tool|>' + message.tools + '<|/tool|><|end|>' }}
{%- else %}
{{- '<|' + message.role + '|>' + message.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
# In the form of OLMo 2's and Phi-4's, which are not at hand either: they have no tools.
OLMO2 = """{{- bos_token }}
{%- for message in messages %}
{{- '<|' + message.role + '|>\\n' + message.content }}
{{- eos_token if message.role == 'assistant' }}{{ '\\n' if not loop.last or message.role != 'assistant' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""
PHI4 = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '<|im_sep|>' + message.content + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"""
# SmolLM3's with a place for tools, which the template at hand has not.
SMOLLM3 = """{%- set thinks = enable_thinking is not defined or enable_thinking %}
{{- '<|im_start|>system\\nReasoning Mode: ' + ('/think' if thinks else '/no_think') + '\\n' }}
{%- if tools %}
{{- '### Tools\\n<tools>\\n' }}{% for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}
{{- '</tools>\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>\\n' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and not thinks %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}
{{- (message.content or '').lstrip('\\n') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' + ('' if thinks else '<think>\\n\\n</think>\\n') }}
{%- endif %}"""
