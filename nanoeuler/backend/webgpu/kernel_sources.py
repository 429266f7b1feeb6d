"""The sources of kernels: what a `.wgsl` file says of itself, and its text for a launch.

A file names its arrays, and its numbers in a structure `Arguments`. For an array x the structure
may have `x_at`, the element at which the array begins in what the kernel sees of its buffer, and
its strides in elements: `x_batch` and `x_row`, that from a token to the next, and of matrices
`x_outer` and `x_inner`.

An array of a type out of `ROLES` holds float32 or float16, as those of a launch do: all that play
one role in a file hold the same. A kernel reads it as f32(x[i]), and writes Role(value). The bytes
that a file's header gives are those of float32.
"""

import functools
import re
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoeuler.backend.webgpu import sizes

FOLDER = Path(__file__).parent
BINDING = re.compile(r"@binding\((\d+)\) var<[^>]*> (\w+): ([^;]+);")
ROLES = ("Activation", "Weight", "Left", "Right", "Add", "Out")
ROLE = re.compile(rf"\b(?:NumbersOf)?({'|'.join(ROLES)})\b")
PAIR = "array<vec2<f32>>"
BYTES, BYTES_OF_HALF, BYTES_OF_PAIR = 4, 2, 8
"""Of an element: of all types, of float16 and of a pair of float32."""
ARGUMENTS = re.compile(r"struct Arguments \{(.*?)\}", re.DOTALL)
UNROLLED = re.compile(
    r"^( *)for \(var (\w+) = 0u; \2 < (\w+); \2\+\+\) \{  // unrolled(?: by (\d+))?\n", re.MULTILINE
)
FIELD = re.compile(r"(\w+): ([uif])32")
PLACES = ("at", "batch", "row", "outer", "inner")
FORMATS = {"u": "I", "i": "i", "f": "f"}
NUMBERS = "p"
"""The name of the structure's variable."""


@dataclass(frozen=True)
class Source:
    """A `.wgsl` file."""

    text: str
    """The code behind its constants, what all files share between them."""
    code: str
    bindings: dict[str, tuple[int, int]]
    """Number and bytes of an element, by the array's name."""
    formats: list[tuple[str, str]]
    """Name and format of each number of `Arguments`."""

    @functools.cached_property
    def fields(self) -> dict[str, int]:
        """The place of each number in `Arguments`."""
        return {name: index for index, (name, _) in enumerate(self.formats)}

    @functools.cached_property
    def packing(self) -> struct.Struct:
        """How they lie in memory."""
        return struct.Struct("".join(FORMATS[kind] for _, kind in self.formats))

    @functools.cached_property
    def places(self) -> dict[str, list[tuple[int, int]]]:
        """By array: numbers that say where it lies, and which of `PLACES` each is."""
        return {
            array: [
                (self.fields[f"{array}_{place}"], index)
                for index, place in enumerate(PLACES)
                if f"{array}_{place}" in self.fields
            ]
            for array in self.bindings
        }


Constants = tuple[tuple[str, int | bool], ...]
FLOAT16 = np.dtype(np.float16)

WIDTH = "WIDTH"
"""The constant of a launch that reads so many neighbours at once, where a file leaves it open."""
NUMBERS_OF = {
    1: """alias Numbers = f32;
alias NumbersOfLeft = Left;
alias NumbersOfRight = Right;
fn sum_of(x: Numbers) -> f32 { return x; }""",
    4: """alias Numbers = vec4<f32>;
alias NumbersOfLeft = vec4<Left>;
alias NumbersOfRight = vec4<Right>;
fn sum_of(x: Numbers) -> f32 { return (x.x + x.y) + (x.z + x.w); }""",
}
"""By that width: so many numbers, and their sum."""


@functools.cache
def source(name: str, constants: Constants = (), halves: frozenset[str] = frozenset()) -> Source:
    """The file `name`; `constants` are those of this launch, beside what stands in sizes.py, and
    `halves` its arrays of float16. Raises `TypeError` where the file reads none."""
    code = (FOLDER / f"{name}.wgsl").read_text(encoding="utf-8")
    types = {array: (int(number), kind) for number, array, kind in BINDING.findall(code)}
    roles = {array: found[1] for array, (_, kind) in types.items() if (found := ROLE.search(kind))}
    if none := halves - roles.keys():
        raise TypeError(f"{name}.wgsl reads no float16 in {', '.join(sorted(none))}")
    half_roles = {roles[array] for array in halves}
    sizes_of = {
        array: BYTES_OF_PAIR if kind == PAIR else BYTES for array, (_, kind) in types.items()
    }
    sizes_of |= {array: BYTES_OF_HALF for array, role in roles.items() if role in half_roles}
    bindings = {array: (number, sizes_of[array]) for array, (number, _) in types.items()}
    (numbers,) = ARGUMENTS.findall(code)
    text = f"{prelude(constants, half_roles)}\n{unrolled(code, dict(constants))}"
    return Source(text, code, bindings, FIELD.findall(numbers))


def unrolled(code: str, constants: dict[str, int]) -> str:
    """The code with its marked loops written out, the inner ones too.

    Their ends are numbers, or constants of the launch. Compilers of drivers do not always do it,
    and keep an array in slow memory whose indices are not known.
    """
    while found := UNROLLED.search(code):
        indent, name, end, by = found.groups()
        close = f"\n{indent}}}\n"
        body, _, rest = code[found.end() :].partition(close)
        count = constants[end] if end in constants else int(end.removesuffix("u"))
        begin, step, tail = "", 0, ""
        if by and count > int(by):
            if count % int(by):
                raise ValueError(f"a loop to {end} = {count} is not unrolled by {by}")
            begin = f"{indent}for (var {name} = 0u; {name} < {count}u; {name} += {by}u) {{\n"
            count, step, tail = int(by), 1, close
        at = re.compile(rf"\b{name}\b")
        bodies = (at.sub(f"({name} + {i}u)" if step else f"{i}u", body) for i in range(count))
        written = "".join(f"{indent}{{\n{each}{close}" for each in bodies)
        code = f"{code[: found.start()]}{begin}{written}{tail}{rest}"
    return code


def prelude(constants: Constants = (), half_roles: Collection[str] = ()) -> str:
    """What stands in front of every file."""
    common = (FOLDER / "common.wgsl").read_text(encoding="utf-8")
    known = {key: value for key, value in vars(sizes).items() if key.isupper()} | dict(constants)
    lines = ["enable f16;"] if half_roles else []
    lines += [f"alias {role} = {'f16' if role in half_roles else 'f32'};" for role in ROLES]
    lines += [constant(key, value) for key, value in known.items()]
    return "\n".join([*lines, NUMBERS_OF.get(known.get(WIDTH, 0), ""), common])


def constant(name: str, value: int | bool) -> str:
    literal = str(value).lower() if isinstance(value, bool) else f"{value}u"
    return f"const {name} = {literal};"
