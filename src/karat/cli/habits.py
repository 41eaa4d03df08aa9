"""Options of llama.cpp, Ollama and vLLM, by habit: those that mean the same are taken, the others get an answer.

An option that a command of Karat has itself is never looked up here. docs/from-llama-cpp.md and docs/from-vllm.md have
the same for readers.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

# In each table a key may begin with a command: `serve -n` is -n of `karat serve` alone.

# Another name for the same; of several the first that the command has.
_RENAMED: Mapping[str, str] = {
    **dict.fromkeys(("-n", "--n-predict", "--predict", "--num-predict"), "--max-tokens"),
    **dict.fromkeys(("-c", "--ctx-size", "--ctx", "--num-ctx"), "--max-model-len"),
    **dict.fromkeys(("-t", "--n-threads"), "--threads"),
    "--temp": "--temperature",
    **dict.fromkeys(("-s", "--sampling-seed"), "--seed"),
    "--repeat-penalty": "--repetition-penalty",
    "-r": "--stop --repeat",
    "--reverse-prompt": "--stop",
    "--repetitions": "--repeat",
    "-jf": "--json-schema",
    **dict.fromkeys(("-sys", "--system-prompt"), "--system"),
    "-j": "--json-schema",
    **dict.fromkeys(("-a", "--alias"), "--served-model-name"),
    **dict.fromkeys(("-np", "--parallel"), "--max-num-seqs"),
    **dict.fromkeys(("-b", "--batch-size"), "--max-num-batched-tokens"),
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo", "-mu", "--model-url"), "--model"),
    "--grammar-file": "--grammar",
    "--chat-template-file": "--chat-template",
    "--dry-sequence-breaker": "--dry-sequence-breakers",
    "--override-kv": "--override",
    "--rope-scale": "--rope-factor",
    "--typical": "--typical-p",
    "--top-nsigma": "--top-n-sigma",
    "-l": "--logit-bias",
    **dict.fromkeys(("-cnv", "--conversation", "-st", "--single-turn"), "--chat"),
    **dict.fromkeys(("-sp", "--special"), "--no-skip-special-tokens"),
    **dict.fromkeys(("--outtype", "--quantization-type"), "--quant"),
    "--allow-requantize": "--requantize",
    **dict.fromkeys(("--ssl-key-file", "--ssl-keyfile"), "--tls-key"),
    **dict.fromkeys(("--ssl-cert-file", "--ssl-certfile"), "--tls-cert"),
    "-tp": "--tensor-parallel-size",
}
# Flags before what is a word of its own here, by the names of the words.
_WORDS: Mapping[str, Collection[str]] = {
    **dict.fromkeys(("-m", "--model", "-hf", "-hfr", "--hf-repo", "-mu", "--model-url"), ("model",)),
    **dict.fromkeys(("-f", "--file"), ("words",)),
    **dict.fromkeys(("-o", "--outfile", "--output"), ("out",)),
}
# An option whose value another option takes in a form of its own.
_SAID_AS: Mapping[str, tuple[str, str]] = {
    "--rope-freq-base": ("--override", "rope_theta={}"),
}
_TEMPLATE_ARGS = ("--chat-template-kwargs", "--default-chat-template-kwargs")  # an object, of which each is an option
_CPU = (
    "--device NAME chooses where all of the model is computed: cpu (the default) or cuda",
    "Karat computes on the CPU",
)
_MAPPED = "files are always mapped, and packed once"
_OTHERWISE = "it changes no answer"
_BY_TEMPLATE = "how a model calls tools and reasons is known from its chat template"
# What changes no answer: the values that may follow (None: one, of any kind), and why it has no effect. Of several
# texts the first that names no option but the command's own.
_Texts = str | tuple[str, ...]
_WITHOUT_EFFECT: Mapping[str, tuple[Collection[str] | None, _Texts]] = {
    **dict.fromkeys(("-ngl", "--n-gpu-layers", "--gpu-layers", "--main-gpu", "-mg", "--device", "-dev"), (None, _CPU)),
    **dict.fromkeys(("--gpu-memory-utilization", "--swap-space"), (None, _CPU)),
    "--enforce-eager": ((), _CPU),
    **dict.fromkeys(("--mmap", "--no-mmap", "--no-repack", "-nr"), ((), _MAPPED)),
    **dict.fromkeys(
        ("--mlock", "--no-warmup", "--warmup"), ((), "weights are packed into memory before the first token")
    ),
    **dict.fromkeys(
        ("-sm", "--split-mode", "-ts", "--tensor-split", "-nkvo", "-ot", "--override-tensor"), (None, _CPU)
    ),
    **dict.fromkeys(("-cmoe", "--cpu-moe", "--no-kv-offload"), ((), _CPU)),
    **dict.fromkeys(("-tb", "--threads-batch", "--numa"), (None, "--threads N is for all work")),
    **dict.fromkeys(
        ("--poll", "--poll-batch", "--prio", "--prio-batch"), (None, "threads spin and sleep by themselves")
    ),
    **dict.fromkeys(("--no-perf", "--perf", "-v", "--verbose"), ((), "figures stand in --json")),
    **dict.fromkeys(("-lv", "--log-verbosity", "--verbosity"), (None, "-q leaves errors alone")),
    "--no-context-shift": ((), "a context that is full ends the answer"),
    **dict.fromkeys(
        ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"),
        (None, "keys and values are kept in float16; --kv-dtype TYPE changes both"),
    ),
    **dict.fromkeys(("-b", "--batch-size", "-ub", "--ubatch-size"), (None, "no result depends on it")),
    **dict.fromkeys(
        ("--log-file", "--log-colors", "-dt", "--defrag-thold", "-cram", "--cache-ram"), (None, _OTHERWISE)
    ),
    **dict.fromkeys(("--embd-normalize", "-fit", "--fit"), (None, _OTHERWISE)),
    **dict.fromkeys(("--log-prefix", "--log-timestamps", "--check-tensors", "--swa-full"), ((), _OTHERWISE)),
    **dict.fromkeys(("-kvu", "--kv-unified", "--direct-io", "-dio", "--no-host"), ((), _OTHERWISE)),
    **dict.fromkeys(("--op-offload", "--no-op-offload"), ((), _CPU)),
    **dict.fromkeys(
        ("-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict"), (None, "taskset binds a process to cores")
    ),
    **dict.fromkeys(("-fa", "--flash-attn"), (("on", "off", "auto", "0", "1"), "attention has one form")),
    **dict.fromkeys(("-np", "--parallel"), (None, "one prompt is computed at a time")),
    **dict.fromkeys(("-no-cnv", "--no-conversation"), ((), "karat run goes on with a text")),
    **dict.fromkeys(("--cache-reuse", "-sps", "--slot-prompt-similarity", "--ctx-checkpoints"), (None, _OTHERWISE)),
    **dict.fromkeys(("--threads-http", "-ncmoe", "--n-cpu-moe"), (None, _OTHERWISE)),
    **dict.fromkeys(("-cb", "--cont-batching"), ((), "batching is always continuous")),
    "--jinja": ((), "chat templates are always Jinja"),
    "--metrics": ((), "/metrics is always there"),
    **dict.fromkeys(("--slots", "--no-slots", "--props"), ((), "/v1/models and /metrics say what is served")),
    **dict.fromkeys(("--no-webui", "--webui"), ((), "the page is a part of the server")),
    **dict.fromkeys(("chat -cnv", "chat --conversation", "chat -i", "chat --interactive"), ((), "karat chat talks")),
    "--trust-remote-code": ((), "no code of a model is run"),
    "--enable-auto-tool-choice": ((), _BY_TEMPLATE),
    **dict.fromkeys(("--tool-call-parser", "--reasoning-parser", "--reasoning-format"), (None, _BY_TEMPLATE)),
    **dict.fromkeys(("--enable-prefix-caching", "--cache-prompt"), ((), "prefixes are always shared")),
    **dict.fromkeys(("--no-display-prompt", "--simple-io", "--color", "-co"), ((), "output is plain")),
    "--verbose-prompt": ((), "--json has the ids of the prompt"),
    "--log-disable": ((), "-q leaves errors alone"),
    **dict.fromkeys(("--uvicorn-log-level", "--log-level"), (None, "-q leaves errors alone")),
    **dict.fromkeys(("--disable-log-requests", "--disable-log-stats"), ((), "-q leaves errors alone")),
}
# Values that are llama.cpp's defaults: given so, an option is none at all.
_DEFAULTS: Mapping[str, Collection[str]] = {
    **dict.fromkeys(("-ngl", "--n-gpu-layers", "--gpu-layers"), ("0",)),
    **dict.fromkeys(("-dev", "--device"), ("none",)),
    "--mirostat": ("0",),
    **dict.fromkeys(("-c", "--ctx-size", "--ctx", "--num-ctx"), ("0",)),
    "--keep": ("0", "-1"),
    "--reasoning-budget": ("-1",),
    **dict.fromkeys(("--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx"), ("0",)),
    **dict.fromkeys(("--grammar", "--lora", "--mmproj"), ("",)),
}
_TALK = "karat chat talks, and karat run --chat asks once"
_NO_LORA = "LoRA is not there yet"
_NO_DRAFTS = "drafts are not there yet"
_NO_EMBEDDINGS = "Karat makes no embeddings yet"
# What is done otherwise.
_ADVICE: Mapping[str, str] = {
    **dict.fromkeys(("-cnv", "--conversation", "-i", "--interactive", "-st", "--single-turn"), _TALK),
    **dict.fromkeys(("--image", "--audio", "--mmproj-url", "-mmu"), "there are no images and no sounds yet"),
    **dict.fromkeys(("--control-vector", "--control-vector-scaled"), "control vectors are not there yet"),
    **dict.fromkeys(("-sysf", "--system-prompt-file"), "--system TEXT"),
    **dict.fromkeys(("-bf", "--binary-file"), "the prompt is read from stdin: karat run -m MODEL < FILE"),
    "--reasoning-budget": "--template-arg enable_thinking=false, for models that have it",
    **dict.fromkeys(("--embedding", "--embeddings"), _NO_EMBEDDINGS),
    "--rope-freq-scale": "--rope-scaling linear --rope-factor N, for a scale of 1 / N",
    "--yarn-orig-ctx": "leave it out: a model's own context is what it was trained for",
    **dict.fromkeys(_TEMPLATE_ARGS, "--template-arg KEY=VALUE, for each"),
    **dict.fromkeys(("--tokenizer", "--tokenizer-mode"), "leave it out: a model's own tokenizer is taken"),
    **dict.fromkeys(("--lora", "--lora-scaled", "--lora-modules", "--enable-lora"), _NO_LORA),
    **dict.fromkeys(
        ("-md", "--model-draft", "--draft", "--draft-max", "--speculative-config", "--spec-type"), _NO_DRAFTS
    ),
    **dict.fromkeys(("-mm", "--mmproj"), "there are no images yet"),
    **dict.fromkeys(("--mirostat", "--mirostat-lr", "--mirostat-ent"), "--typical-p aims at the same surprise"),
    **dict.fromkeys(("-e", "--escape"), "escapes stay as they are: the shell writes them, as in $'one\\ntwo'"),
    **dict.fromkeys(("--rerank", "--reranking", "--pooling"), _NO_EMBEDDINGS),
    **dict.fromkeys(("--prompt-cache", "--slot-save-path"), "karat serve keeps what prompts begin with in memory"),
    **dict.fromkeys(("--in-prefix", "--in-suffix"), "the chat template writes what stands around a message"),
    "--path": "leave it out: the page is a part of the server",
    "--offline": "set HF_HUB_OFFLINE=1",
    "--keep": "leave it out: a context that is full ends the answer",
    **dict.fromkeys(("-hff", "--hf-file"), "name it with the model: ORG/NAME:Q4_K_M"),
    **dict.fromkeys(
        ("--samplers", "--sampling-seq", "--sampler-seq"), "the order is fixed; leave one out by its own option"
    ),
    "--format": "--json-schema FILE holds an answer to a schema",
    "--insecure": "hubs are asked as HF_ENDPOINT says",
    "--timeout": "karat serve has --body-timeout-s, --head-timeout-s and --write-timeout-s",
    "--rpc": "ranks are processes of this machine: --tensor-parallel-size N",
    **dict.fromkeys(("--models-dir", "--models-preset"), "a server has one model"),
    "--chunks": "leave it out, or give a shorter text",
    **dict.fromkeys(("-o", "--output", "--output-format"), "--json has it as JSON, and > FILE writes it to a file"),
    "bench -o": "a table is the default, and --json has the figures as JSON",
    **dict.fromkeys(("serve -o", "serve --output"), "--log-format json has the log as JSON"),
    **dict.fromkeys(
        tuple(
            f"serve {name}"
            for name in (
                *(
                    "--temp",
                    "--temperature",
                    "--top-k",
                    "--top-p",
                    "--min-p",
                    "--typical",
                    "--typical-p",
                    "-s",
                    "--seed",
                ),
                *("--repeat-penalty", "--repeat-last-n", "--presence-penalty", "--frequency-penalty", "-l", "--stop"),
                *("--dry-multiplier", "--xtc-probability", "--xtc-threshold", "--mirostat", "-r", "--reverse-prompt"),
                *("--grammar", "--grammar-file", "-j", "-jf", "--json-schema", "--ignore-eos", "--top-nsigma"),
                *("-sys", "--system", "--system-prompt", "-sysf", "--system-prompt-file", "-p", "--prompt"),
            )
        ),
        "clients send it with each request, and a model's generation_config.json may have defaults",
    ),
    **dict.fromkeys(
        ("serve -n", "serve --n-predict", "serve --predict", "serve --max-tokens"),
        "clients send max_tokens; --default-max-tokens N is for requests without it",
    ),
}
_COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("quantize", "quantise"), "karat convert IN OUT.gguf --quant Q4_K_M"),
    **dict.fromkeys(("tokenize", "tokenise"), "karat serve has /tokenize, and karat run --json the ids of a prompt"),
    "version": "karat --version",
    "--list-devices": "karat env",
    "start": "karat serve MODEL",
    **dict.fromkeys(
        ("list", "ps", "ls", "rm", "cp", "stop"), "karat env says what is here; models are folders and files of yours"
    ),
    **dict.fromkeys(("gguf-split", "split", "merge"), "a GGUF file in parts is read as it is: name its first part"),
    "imatrix": "karat convert quantises without an importance matrix",
    **dict.fromkeys(("batched-bench", "benchmark"), "karat bench MODEL, with --batch N for batched decode"),
    **dict.fromkeys(("create", "push"), "a Modelfile is not read: karat run MODEL, with --system and --temperature"),
    "download": "karat pull ORG/NAME",
    **dict.fromkeys(("embedding", "embed", "rerank"), _NO_EMBEDDINGS),
}
# Programs of llama.cpp, by the command that does the same; an option in place of a command is one of llama-cli.
_PROGRAMS: Mapping[str, str] = {
    **dict.fromkeys(("server", "llama-server"), "serve"),
    **dict.fromkeys(("complete", "completion", "generate", "llama-completion"), "run"),
    **dict.fromkeys(("show", "info"), "inspect"),
    "llama-bench": "bench",
    "llama-perplexity": "perplexity",
}
_CLI = ("cli", "llama-cli")
_TALKING = frozenset({"-cnv", "--conversation", "-i", "--interactive"})
_NOT_TALKING = frozenset({"-p", "--prompt", "-f", "--file", "-no-cnv", "--no-conversation", "-st", "--single-turn"})
_OF_CLI = ("-m", "--model", "-hf", "-hfr", "--hf-repo", "-mu", "--model-url", "-p", "--prompt")
# Options in a text, and what a text says of another command.
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_OF_ANOTHER = re.compile(r"karat (?!--)[^;]*")


@dataclass(frozen=True, slots=True)
class Translated:
    """The words of a command with Karat's names; remarks on what has no effect; an answer for what is not there.

    `is_wrong`: the words must not be parsed, which would read something else.
    """

    args: list[str]
    remarks: tuple[str, ...] = ()
    advice: str | None = None
    is_wrong: bool = False


def commanded(args: Sequence[str]) -> tuple[list[str], str | None]:
    """The words with the command that another engine's name of a program means, and a remark on it, if there is one.

    Without a prompt llama-cli talks.
    """
    first, *rest = args or ("",)
    names = {arg.partition("=")[0] for arg in args}
    talks, is_option = _NOT_TALKING.isdisjoint(names), first.partition("=")[0] in _OF_CLI
    if is_option or first in _CLI:
        command = "chat" if talks else "run"
    elif first == "run" and talks and not _TALKING.isdisjoint(names):
        command = "chat"
    elif (command := _PROGRAMS.get(first, "")) == "":
        return list(args), None
    more = ""
    if command == "run" and (is_option or first in _CLI):
        answers = any(_RENAMED.get(name, name) == "--chat" for name in names)
        more = ", which answers once; karat chat talks" if answers else ", which goes on with a text; --chat answers it"
    return [command, *(args if is_option else rest)], f"karat {first}: taken as karat {command}{more}"


def translated(
    args: Sequence[str], flags: Collection[str], valued: Collection[str], words: Collection[str], command: str = ""
) -> Translated:
    """`args` of a command that has the options `flags` (without a value) and `valued`, and the named `words`."""
    own = {*flags, *valued}
    made: list[str] = []
    remarks: list[str] = []
    advice = None
    waiting = list(reversed(args))
    while waiting:
        arg = waiting.pop()
        name, equals, value = arg.partition("=")
        if name.startswith("--") and name not in own:
            name = name.replace("_", "-")
            arg = f"{name}{equals}{value}" if name in own else arg
        key = f"{command} {name}"
        said_as = _SAID_AS.get(name)
        if (value if equals else waiting[-1] if waiting else None) in _DEFAULTS.get(name, ()):
            if not equals:
                waiting.pop()
        elif arg == "--" or not arg.startswith("-") or name in own:
            made.append(arg)
            if name in valued and not equals and waiting:
                made.append(waiting.pop())
            if arg == "--":
                made += reversed(waiting)
                break
        elif said_as is not None and said_as[0] in own and (equals or waiting):
            made += [said_as[0], said_as[1].format(value if equals else waiting.pop())]
        elif name in _TEMPLATE_ARGS and "--template-arg" in own and (equals or waiting):
            made += _each_template_arg(value if equals else waiting.pop())
        elif other := next((each for each in _RENAMED.get(name, "").split() if each in own), None):
            waiting.append(f"{other}{equals}{value}")
        elif not equals and any(word in words for word in _WORDS.get(name, ())):
            continue  # what follows is the word
        elif effectless := _WITHOUT_EFFECT.get(key) or _WITHOUT_EFFECT.get(name):
            values, why = effectless
            if not equals and waiting and (waiting[-1][:1] != "-" if values is None else waiting[-1] in values):
                waiting.pop()
            remarks.append(f"{name} has no effect" + _after_colon(why, own))
        elif len(name) > 2 and name[1:].isalpha() and not {f"-{letter}" for letter in name[1:]} <= {*flags}:
            # A parser would take the rest for the value of the first letter: -md FILE for -m d.
            said = f"there is no {name} here" + _after_colon(_ADVICE.get(key, _ADVICE.get(name, "")), own)
            return Translated(made, tuple(remarks), advice or said, is_wrong=True)
        else:
            if advice is None and (told := _after_colon(_ADVICE.get(key, _ADVICE.get(name, "")), own)):
                advice = f"there is no {name} here{told}"
            made.append(arg)
    return Translated(made, tuple(remarks), advice)


def _each_template_arg(text: str) -> list[str]:
    """--template-arg for each variable of an object; the text itself where it is none, which is then refused."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    pairs = [f"{key}={json.dumps(value)}" for key, value in given.items()] if isinstance(given, dict) else [text]
    return [word for pair in pairs for word in ("--template-arg", pair)]


def _after_colon(texts: _Texts, own: Collection[str]) -> str:
    """The first of the texts that names options of the command alone, or of another with its name; '' if none does."""
    for text in (texts,) if isinstance(texts, str) else texts:
        if text and {*_OPTION.findall(_OF_ANOTHER.sub("", text))} <= {*own}:
            return f": {text}"
    return ""


def unread(names: Collection[str]) -> str | None:
    """A remark on variables of llama.cpp's programs (LLAMA_ARG_…), which are options there and have no effect here."""
    return f"{', '.join(names)} in the environment: not read; give options instead" if names else None


def advice_on_command(name: str) -> str | None:
    """What stands for a word that is no command."""
    return _COMMANDS.get(name)
