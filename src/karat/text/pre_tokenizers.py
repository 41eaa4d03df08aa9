"""The pre-tokenizers that `tokenizer.ggml.pre` of a GGUF file names, as in the models' own tokenizer.json.

llama.cpp approximates some of them, as it has its own Unicode tables and never normalises. These are the originals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENGLISH}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENGLISH}?|"
    rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_SEED = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_DIGIT, _NEWLINE = r"\p{N}", r"[\r\n]"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
# Code points, first and last of each range, of the letters with case that DeepSeek LLM keeps together.
_DEEPSEEK_LETTERS = """
    41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1
    3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A
    1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4
    1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128
    212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D
    A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3
    104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""
_DEEPSEEK_V3_WORD = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _SPACES
)


def _letters() -> str:
    """A regular expression for a run of DeepSeek's letters."""
    ranges = [[chr(int(code, 16)) for code in item.split("-")] for item in _DEEPSEEK_LETTERS.split()]
    return rf"\s?[{''.join('-'.join(ends) for ends in ranges)}]+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Cuts a text at each match of each pattern in turn.

    takes_whole: a piece that is a token is taken whole, not merged from parts. nfc: text is normalised first. adds_bos:
    whether a text begins with BOS where the file does not state it.
    """

    patterns: Sequence[str]
    takes_whole: bool = False
    nfc: bool = False
    adds_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The pre-tokenizer. Its last step writes bytes as letters (byte-level BPE)."""
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def normalizer(self) -> normalizers.Normalizer | None:
        """The normalizer before it; None for none."""
        return normalizers.NFC() if self.nfc else None


_LLAMA3_KIND = PreTokenizer([_LLAMA3], takes_whole=True, adds_bos=True)
_QWEN2_KIND = PreTokenizer([_QWEN2], nfc=True)
_DIGITS_GPT2 = PreTokenizer([_DIGIT, _GPT2])
# Where several names have the same value, `karat convert` writes the first.
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer(
        [r"[\p{P}\$\+<=>\^~\|]+", _GPT2.removesuffix(r"|\s+"), r"\p{N}+", "[0-9][0-9][0-9]"]
    ),  # llama.cpp's own, where a file names none
    "deepseek-coder": PreTokenizer([_NEWLINE, r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGIT]),
    "dbrx": PreTokenizer([_LLAMA3]),  # Phi-4 in files of the architecture llama
    "deepseek-llm": PreTokenizer([_NEWLINE, _letters(), _DEEPSEEK_PUNCTUATION, r"\s+$", _CJK, _DIGIT]),
    "deepseek-v3": PreTokenizer([r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_V3_WORD]),
    "gpt-2": PreTokenizer([_GPT2]),
    "gpt-4o": PreTokenizer([_GPT4O], takes_whole=True),  # gpt-oss, as tiktoken cuts and takes
    "llama-bpe": _LLAMA3_KIND,
    "llama-v3": _LLAMA3_KIND,
    "llama3": _LLAMA3_KIND,
    "lfm2": _LLAMA3_KIND,
    "olmo": PreTokenizer([_GPT2], nfc=True),  # GPT-NeoX's
    "qwen2": _QWEN2_KIND,
    "deepseek-r1-qwen": _QWEN2_KIND,  # the distilled Qwens
    "qwen35": PreTokenizer([_QWEN35], nfc=True),
    "refact": _DIGITS_GPT2,
    "seed-coder": PreTokenizer([_SEED]),  # Seed-OSS
    "smaug-bpe": PreTokenizer([_LLAMA3]),  # an early version of Llama 3's, without takes_whole
    "smollm": _DIGITS_GPT2,
    "starcoder": _DIGITS_GPT2,
    "tekken": PreTokenizer([_TEKKEN], takes_whole=True, adds_bos=True),
}
