"""Mistakes planted in the kernels of csrc/gpu: tests/ops/test_device.py finds each of them.

The module of the emulation is compiled once, from a copy of csrc that has all of them; KARAT_MISTAKE is the number of
the one that is made.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

nanobind = pytest.importorskip("nanobind", reason="what the module is compiled with")

ROOT = Path(__file__).resolve().parents[2]
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
TESTS = "tests/ops/test_device.py"
FLAGS = (
    "-std=c++20 -O1 -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -march=native -DNDEBUG "
    "-DKARAT_DEVICE_MODULE=_emulated -DKARAT_ISA_NAMESPACE=gpu -DKARAT_ONE_LANE"
).split()
READ = """
#include <cstdlib>
namespace karat::gpu {
inline const int mistake = std::getenv("KARAT_MISTAKE") ? std::atoi(std::getenv("KARAT_MISTAKE")) : 0;
}
"""

# By name: the header, what stands there, and what stands there instead, where MISTAKE is whether it is made.
MISTAKES = {
    "no barrier after parts": (
        "integer_few.h",
        "cta.template wait<0>();\n            cta.sync();",
        "cta.template wait<0>();\n            if (!MISTAKE) cta.sync();",
    ),
    "one buffer for parts": (
        "integer_few.h",
        "return (((chunk % 2 * kSteps + step) * kSubs + sub) * kTokens",
        "return ((((MISTAKE ? 0 : chunk % 2) * kSteps + step) * kSubs + sub) * kTokens",
    ),
    "digits read before they are there": (
        "integer_few.h",
        "cta.template wait<1>();\n        cta.sync();",
        "if (!MISTAKE) cta.template wait<1>();\n        cta.sync();",
    ),
    "a fetch into the chunk that is read": (
        "integer_few.h",
        "fetch(chunk + 2);  // into",
        "fetch(chunk + (MISTAKE ? 3 : 2));  // into",
    ),
    "a chain from its end": (
        "integer_few.h",
        "part[i] = parts.get(part_at(chunk, step + i / kSubs,",
        "part[i] = parts.get(part_at(chunk, step + (MISTAKE ? kCount - 1 - i / kSubs : i / kSubs),",
    ),
    "a product that is rounded before its sum": (
        "integer_few.h",
        "sum = fma(part[i].sum, part[i].scale, sum);",
        "sum = MISTAKE ? part[i].sum * part[i].scale + sum : fma(part[i].sum, part[i].scale, sum);",
    ),
    "digits joined as floats": (
        "integer_parts.h",
        "return float_of_int(of_digit[0] * 256 + of_digit[1]);",
        "return MISTAKE ? float_of_int(of_digit[0] / 2) * 512.0f + float_of_int(of_digit[0] % 2 * 256 + of_digit[1])\n"
        "                                               : float_of_int(of_digit[0] * 256 + of_digit[1]);",
    ),
    "a zero point that is one too small": (
        "integer_parts.h",
        "of_digit[kDigits - 1] = -Fmt::Codes::kZero *",
        "of_digit[kDigits - 1] = ((MISTAKE ? 1 : 0) - Fmt::Codes::kZero) *",
    ),
    "the minimum of another row": (
        "integer_few.h",
        "minima.get(minimum_at(chunk, step + i / kSubs, sub, row))",
        "minima.get(minimum_at(chunk, step + i / kSubs, sub, MISTAKE ? row ^ 1 : row))",
    ),
    "a tile's weights read before they are there": (
        "integer_many.h",
        "cta.template wait<0>();\n            cta.sync();",
        "cta.template wait<0>();\n            if (!MISTAKE) cta.sync();",
    ),
    "no barrier before a tile's next weights": (
        "integer_many.h",
        "            }\n            cta.sync();\n        }",
        "            }\n            if (!MISTAKE) cta.sync();\n        }",
    ),
    "a power of another token of a tile": (
        "integer_many.h",
        "at = digits_at(token_of(thread, i), step);",
        "at = digits_at(token_of(thread, MISTAKE ? 0 : i), step);",
    ),
    "a tile's minimum before its product": (
        "integer_many.h",
        "sum = fma(part, scales.get(scale) * staged.template get_as<float>(at), sum);",
        "if constexpr (Fmt::kHasMinimum) if (MISTAKE) sum = fma(Of::value(sub, at, staged), minima.get(scale), sum);\n"
        "sum = fma(part, scales.get(scale) * staged.template get_as<float>(at), sum);\n"
        "if (MISTAKE) continue;",
    ),
    "two digits in one sum on tensor cores": (
        "integer_many.h",
        "parts[thread].v[digit]};",
        "parts[thread].v[MISTAKE ? 0 : digit]};",
    ),
    "columns of a tile's codes and digits in other orders": (
        "integer_many.h",
        "const int column = thread % 4;",
        "const int column = MISTAKE ? thread % 4 ^ (thread / 4 % 2) : thread % 4;",
    ),
    "a product on tensor cores with the zero point of another format": (
        "integer_many.h",
        "halves_of_bytes<Fmt::Codes::kZero>(",
        "halves_of_bytes<Fmt::Codes::kZero>((MISTAKE ? 0x01010101u : 0u) + ",
    ),
    "a fetch into a tile's chunk that is read": (
        "float_many.h",
        "fetch(chunk + 1);  // into",
        "fetch(chunk + (MISTAKE ? 2 : 1));  // into",
    ),
    "leaves of a tile that go on to the next token's": (
        "float_many.h",
        "            leaf = begun;\n",
        "            if (!MISTAKE) leaf = begun;\n",
    ),
    "a block's scale before its chain": (
        "scaled.h",
        "const float number = Fmt::number(word, j).v;",
        "const float number = Fmt::number(word, j).v * (MISTAKE ? as_float(block.word(0)).v : 1.0f);",
    ),
    "a block's chain that is rounded before its sum": (
        "scaled.h",
        "sums[i] = fma(parts[i], scale, sums[i]);",
        "sums[i] = MISTAKE ? parts[i] * scale + sums[i] : fma(parts[i], scale, sums[i]);",
    ),
    "a limit of 32767": ("digits.h", "<< 23)) > kLimit;", "<< 23)) > (MISTAKE ? 32767 : kLimit);"),
    "ties away from zero": (
        "simt.h",
        "static_cast<std::int32_t>(__builtin_nearbyintf(f))",
        "static_cast<std::int32_t>(MISTAKE ? __builtin_roundf(f) : __builtin_nearbyintf(f))",
    ),
    "a tree of another shape": (
        "panels.h",
        "sums.get((i + width) * threads + thread)",
        "sums.get((MISTAKE && width == 1 && a.num_leaves > 2 ? i ^ 3 : i + width) * threads + thread)",
    ),
    "leaves that go on": (
        "panels.h",
        "            sum = 0;\n            ++leaf;",
        "            if (!MISTAKE) sum = 0;\n            ++leaf;",
    ),
    "a chain of floats that is rounded twice": (
        "float_few.h",
        "sum = fma(read(ws[from][i]), float_of(xs[from][i / 4].v[i % 4]), sum);",
        "{ const float weight = read(ws[from][i]), of_x = float_of(xs[from][i / 4].v[i % 4]);\n"
        "  sum = MISTAKE ? weight * of_x + sum : fma(weight, of_x, sum); }",
    ),
    "weights read before they are there": (
        "float_few.h",
        "cta.template wait<kStages - 2>();",
        "if (!MISTAKE) cta.template wait<kStages - 2>();",
    ),
    "no barrier before the tree": (
        "float_few.h",
        "        cta.sync();\n        each_chain(",
        "        if (!MISTAKE) cta.sync();\n        each_chain(",
    ),
    "an inner sum in another order": (
        "simt.h",
        "lanes[lane] = lanes[lane] + lanes[lane + kHalf];",
        "lanes[lane] = lanes[MISTAKE ? 2 * lane : lane] + lanes[MISTAKE ? 2 * lane + 1 : lane + kHalf];",
    ),
    "SwiGLU as a product": (
        "elementwise.h",
        "out[i] = g / one_plus_exp_of_minus(g) *",
        "out[i] = (MISTAKE ? g * (1.0f / one_plus_exp_of_minus(g)) : g / one_plus_exp_of_minus(g)) *",
    ),
    "squares of a head that another rank has": (
        "elementwise.h",
        "part.ends[leaf - 1] : part.first) +",
        "part.ends[leaf - 1] : MISTAKE ? 0 : part.first) +",
    ),
    "leaves of squares along another tree": (
        "elementwise.h",
        "lanes.set(leaf, lanes.get(2 * leaf) + lanes.get(2 * leaf + 1));",
        "lanes.set(leaf, MISTAKE ? lanes.get(leaf) + lanes.get(leaf + count / 2)\n"
        "                            : lanes.get(2 * leaf) + lanes.get(2 * leaf + 1));",
    ),
    "a product that is added to zero": (
        "elementwise.h",
        "out[i] = value_at<float>(x + i) * value_at<float>(y + i);",
        "out[i] = MISTAKE ? fma(value_at<float>(x + i), value_at<float>(y + i), 0.0f)\n"
        "                 : value_at<float>(x + i) * value_at<float>(y + i);",
    ),
    "a factor of another number": (
        "elementwise.h",
        "value_at<float>(x + i) * value_at<float>(factor);",
        "value_at<float>(x + i) * value_at<float>(MISTAKE ? x : factor);",
    ),
    "a sigmoid as what another leaves of 1": (
        "elementwise.h",
        "out[i] = 1.0f / one_plus_exp_of_minus(value_at<float>(x + i));",
        "out[i] = MISTAKE ? 1.0f - 1.0f / one_plus_exp_of_minus(-value_at<float>(x + i))\n"
        "                 : 1.0f / one_plus_exp_of_minus(value_at<float>(x + i));",
    ),
    "the other product of a rotation rounded": (
        "elementwise.h",
        "return {at, fma(left, c, -(right * s)),",
        "return {at, MISTAKE ? fma(-right, s, left * c) : fma(left, c, -(right * s)),",
    ),
    "a window that is one too long": (
        "shapes.h",
        "return window && window < all ? all - window : 0;",
        "return window && window < all ? all - window - (MISTAKE ? 1 : 0) : 0;",
    ),
    "no barrier before weights are read": (
        "attention.h",
        "cta.template wait<kStages - 2>();\n            cta.sync();",
        "cta.template wait<kStages - 2>();\n            if (!MISTAKE) cta.sync();",
    ),
    "a merge that forgets a scale": (
        "attention.h",
        "total = fma(total, of_sum, part[dim] * of_part);",
        "total = fma(total, of_sum, part[dim] * (MISTAKE ? 1.0f : of_part));",
    ),
    "a cache in bfloat16 that is cut off": (
        "cache.h",
        "return bf16_of(value);",
        "return MISTAKE ? static_cast<std::uint16_t>(bits_of(value) >> 16) : bf16_of(value);",
    ),
    "of equal logits the larger id": (
        "choosing.h",
        "<< 32 | static_cast<std::uint32_t>(index);\n}",
        "<< 32 | static_cast<std::uint32_t>(MISTAKE ? ~index : index);\n}",
    ),
    "zeros of which the negative one is smaller": (
        "choosing.h",
        "bits_of(number + 0.0f)",
        "bits_of(MISTAKE ? number : number + 0.0f)",
    ),
    "runs of the largest that meet the same way round": (
        "choosing.h",
        "least.get(half + (i ^ (kept - 1)));",
        "least.get(half + (MISTAKE ? i : i ^ (kept - 1)));",
    ),
    "no barrier between comparisons": (
        "choosing.h",
        "const auto order = [&](int size, int step, int mask) {\n            cta.sync();",
        "const auto order = [&](int size, int step, int mask) {\n            if (!MISTAKE) cta.sync();",
    ),
    "the first narrow row of a table in wide panels": (
        "embedding.h",
        "row < wide_rows ? kPanelRows : size",
        "(MISTAKE ? row <= wide_rows : row < wide_rows) ? kPanelRows : size",
    ),
    "of equal experts the larger id": (
        "../simd/routing.h",
        "return a > b || (a == a",
        "return (MISTAKE ? a >= b : a > b) || (a == a",
    ),
    "a bias of the first expert": (
        "experts.h",
        "static_cast<std::size_t>(expert) * a.columns + i % a.columns",
        "static_cast<std::size_t>(MISTAKE ? 0 : expert) * a.columns + i % a.columns",
    ),
    "a sink that weighs nothing": (
        "attention.h",
        "total = has_sink ? 1.0f : part[dim]",
        "total = has_sink ? (MISTAKE ? 0.0f : 1.0f) : part[dim]",
    ),
    "a cap before the scale": (
        "attention.h",
        "capped(set1(sums[thread].v[r]), set1(a.cap)).v;",
        "(MISTAKE ? capped(set1(sums[thread].v[r] / a.scale), set1(a.cap)).v * a.scale\n"
        "         : capped(set1(sums[thread].v[r]), set1(a.cap)).v);",
    ),
    "a delta that decays after it was added": (
        "recurrence.h",
        "after[place] = fma(value_at<float>(a.k + key + row), change, decay * (before ? before[place] : 0.0f));",
        "after[place] = MISTAKE\n"
        "    ? decay * fma(value_at<float>(a.k + key + row), change, before ? before[place] : 0.0f)\n"
        "    : fma(value_at<float>(a.k + key + row), change, decay * (before ? before[place] : 0.0f));",
    ),
    "a convolution that begins with the slot that is written": (
        "recurrence.h",
        "const int from = a.reads[seq];\n        if (from < 0) return 0;",
        "const int from = MISTAKE ? a.writes[seq] : a.reads[seq];\n        if (a.reads[seq] < 0) return 0;",
    ),
    "numbers behind the turned ones that are left out": (
        "elementwise.h",
        "if (pair >= half) return {at + half, value_at<float>(x + at + half), 0, false};",
        "if (pair >= half) return {at + half, MISTAKE ? 0.0f : value_at<float>(x + at + half), 0, false};",
    ),
    "experts in the order in which they were chosen": (
        "experts.h",
        "&& (at < 0 || id < ids[at] - a.chosen.first)",
        "&& (at < 0 || (!MISTAKE && id < ids[at] - a.chosen.first))",
    ),
}

pytestmark = [pytest.mark.long, pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plugin for pytest: it brings the module that has the mistakes."""
    folder = tmp_path_factory.mktemp("mistaken")
    csrc, packages = folder / "csrc", Path(nanobind.__file__).parent
    shutil.copytree(ROOT / "csrc", csrc)
    for number, (header, right, wrong) in enumerate(MISTAKES.values(), start=1):
        path = csrc / "gpu" / header
        text = path.read_text(encoding="utf-8")
        assert text.count(right) == 1, f"{header} has {right!r} {text.count(right)} times"
        path.write_text(text.replace(right, wrong.replace("MISTAKE", f"(mistake == {number})")), encoding="utf-8")
    host = csrc / "gpu" / "host.h"
    host.write_text(host.read_text(encoding="utf-8").replace("#pragma once\n", f"#pragma once\n{READ}"), "utf-8")
    includes = [csrc, packages / "include", packages / "ext/robin_map/include", sysconfig.get_paths()["include"]]
    sources = [*(csrc / "gpu").glob("*.cpp"), csrc / "python/device_module.cpp", csrc / "formats/packed.cpp"]
    objects = [folder / f"{source.stem}.o" for source in sources]
    for source, made in zip(sources, objects, strict=True):
        command = [str(COMPILER), *FLAGS, *(f"-I{each}" for each in includes), "-c", source, "-o", made]
        subprocess.run(command, check=True)
    library = folder / "nanobind.o"
    command = [str(COMPILER), *FLAGS, *(f"-I{each}" for each in includes), "-c", packages / "src/nb_combined.cpp"]
    subprocess.run([*command, "-o", library], check=True)
    module = folder / "_emulated.so"
    subprocess.run([str(COMPILER), "-shared", *objects, library, "-o", module], check=True)
    (folder / "mistaken.py").write_text(
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('karat._emulated', {str(module)!r})\n"
        "sys.modules['karat._emulated'] = module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n",
        encoding="utf-8",
    )
    return folder


def outcome(plugin: Path, number: int) -> subprocess.CompletedProcess[str]:
    """What the device's tests say where this mistake is made; 0 is none."""
    places = os.pathsep.join([str(plugin), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": places, "KARAT_LONG": "1", "KARAT_MISTAKE": str(number)}
    test = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "mistaken", TESTS]
    return subprocess.run(test, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_without_a_mistake(plugin: Path) -> None:
    done = outcome(plugin, 0)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str, plugin: Path) -> None:
    done = outcome(plugin, list(MISTAKES).index(name) + 1)
    assert done.returncode == 1 and "1 failed" in done.stdout, f"nothing was found: {done.stdout[-500:]}"
