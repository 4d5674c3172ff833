"""A draft model out of the target itself: the same GGUF file without some of its blocks.

``python -m outpace.audit.engines.shallow TARGET.gguf DRAFT.gguf --drop 23,24,25`` leaves blocks 23 to 25 out. Such a
draft agrees with the target often but not always, shares its vocabulary, and every engine that reads GGUF can use it.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter

from ...core.errors import ModelError


def write_shallow(target: str | Path, draft: str | Path, drop: Collection[int]) -> None:
    """Write ``draft``: the tensors of ``target`` as they are, but for the blocks in ``drop``; the others move up.

    Raises ModelError when a block does not exist or none would be left.
    """
    reader = GGUFReader(str(target))
    architecture = str(reader.fields["general.architecture"].contents())
    count_key = f"{architecture}.block_count"
    blocks = int(reader.fields[count_key].contents())
    kept = [block for block in range(blocks) if block not in drop]
    if not kept or not set(drop) <= set(range(blocks)):
        raise ModelError(f"{target}: has blocks 0 to {blocks - 1}; cannot leave out {sorted(drop)}")
    places = {block: place for place, block in enumerate(kept)}
    writer = GGUFWriter(str(draft), architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = len(kept) if name == count_key else field.contents()
        element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], sub_type=element)
    for tensor in reader.tensors:
        name = tensor.name
        if name.startswith("blk."):
            _, number, rest = name.split(".", 2)
            if int(number) not in places:
                continue
            name = f"blk.{places[int(number)]}.{rest}"
        writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", metavar="TARGET.gguf")
    parser.add_argument("draft", metavar="DRAFT.gguf")
    parser.add_argument("--drop", required=True, metavar="N,N,...", help="blocks to leave out")
    options = parser.parse_args()
    write_shallow(options.target, options.draft, [int(number) for number in options.drop.split(",")])


if __name__ == "__main__":
    main()
