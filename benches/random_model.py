#!/usr/bin/env python3
"""Writes a model of Llama-3.2-1B's shape with random f16 weights: speed does not ask what a model says.

usage: random_model.py VOCABULARY.gguf OUT.gguf [--seed N]

The tokenizer is that of a GGUF file with byte pairs and fewer tokens (SmolLM2's, say), filled up with tokens that are never used until the
language-model head has its real size. `llama-quantize` makes the formats of it that are measured.
Needs the packages `gguf` and `numpy`.
"""
import argparse

import numpy
from gguf import GGUFReader, GGUFWriter, TokenType
from gguf.constants import GGMLQuantizationType

LAYERS, WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 16, 2048, 8192, 32, 8, 64, 128256


def matrices():
    """Name, rows and columns of each."""
    yield "token_embd", VOCABULARY, WIDTH
    for layer in range(LAYERS):
        for name, rows, columns in [
            ("attn_q", HEADS * HEAD_DIM, WIDTH),
            ("attn_k", KV_HEADS * HEAD_DIM, WIDTH),
            ("attn_v", KV_HEADS * HEAD_DIM, WIDTH),
            ("attn_output", WIDTH, HEADS * HEAD_DIM),
            ("ffn_gate", HIDDEN, WIDTH),
            ("ffn_up", HIDDEN, WIDTH),
            ("ffn_down", WIDTH, HIDDEN),
        ]:
            yield f"blk.{layer}.{name}", rows, columns


def norms():
    yield "output_norm"
    for layer in range(LAYERS):
        yield f"blk.{layer}.attn_norm"
        yield f"blk.{layer}.ffn_norm"


def copy_tokenizer(reader, writer):
    fields = {name.removeprefix("tokenizer.ggml."): field.contents()
              for name, field in reader.fields.items() if name.startswith("tokenizer.ggml.")}
    missing = range(len(fields["tokens"]), VOCABULARY)
    writer.add_tokenizer_model(fields["model"])
    if "pre" in fields:
        writer.add_tokenizer_pre(fields["pre"])
    writer.add_token_list(fields["tokens"] + [f"<extra_{i}>" for i in missing])
    writer.add_token_types(fields["token_type"] + [int(TokenType.UNUSED)] * len(missing))
    writer.add_token_merges(fields["merges"])
    writer.add_bos_token_id(fields["bos_token_id"])
    writer.add_eos_token_id(fields["eos_token_id"])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("vocabulary")
    arguments.add_argument("out")
    arguments.add_argument("--seed", type=int, default=1)
    args = arguments.parse_args()

    writer = GGUFWriter(args.out, "llama")
    writer.add_name("random 1B")
    writer.add_context_length(4096)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    copy_tokenizer(GGUFReader(args.vocabulary), writer)

    shapes = list(matrices())
    for name, rows, columns in shapes:
        writer.add_tensor_info(f"{name}.weight", (rows, columns), numpy.dtype(numpy.float16), rows * columns * 2,
                               GGMLQuantizationType.F16)
    for name in norms():
        writer.add_tensor_info(f"{name}.weight", (WIDTH,), numpy.dtype(numpy.float32), WIDTH * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = numpy.random.default_rng(args.seed)
    for _, rows, columns in shapes:
        values = random.standard_normal((rows, columns), dtype=numpy.float32)
        writer.write_tensor_data((values * 0.02).astype(numpy.float16))
    for _ in norms():
        writer.write_tensor_data(numpy.ones(WIDTH, dtype=numpy.float32))
    writer.close()


if __name__ == "__main__":
    main()
