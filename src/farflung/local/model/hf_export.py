"""Exports the built-in GPT as a folder that `transformers` loads.

It is a GPT-2 with other names, and its tokens are bytes.

GPT-2 keeps the weights of its linear layers transposed (Conv1D), has the same gelu (tanh), norms with eps 1e-5, learned
positions and a tied head. The tokenizer is byte-level BPE without a single merge: the token of a byte is its number.
Written without transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from farflung.core.errors import PolicyError
from farflung.train.model_file import ModelFileHeader

_BLOCK: Final = {
    "norm1": "ln_1",
    "qkv": "attn.c_attn",
    "out": "attn.c_proj",
    "norm2": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
_TOP: Final = {"embed": "wte", "position": "wpe", "norm": "ln_f"}
_TRANSPOSED: Final = ("qkv", "out", "up", "down")


def check(card: ModelFileHeader) -> None:
    """Raises PolicyError FF-APP-170 when transformers has no model that computes the same."""
    if card.kind != "gpt":
        raise PolicyError(
            "FF-APP-170",
            "custom modules cannot be exported as a transformers model",
            cause=f"{card.module} is a program that transformers does not know",
            hint="farflung export --format safetensors",
        )


def files(card: ModelFileHeader, tensors: Mapping[str, NDArray[Any]], readme: str) -> dict[str, bytes]:
    """The folder by file names. A model whose tokens are no bytes has no tokenizer. Raises PolicyError FF-APP-170."""
    check(card)
    said: dict[str, Any] = {"config.json": _config(card), "generation_config.json": _generation(card)}
    if card.tokens == "bytes":
        said["tokenizer.json"] = _tokenizer(card.vocabulary)
        said["tokenizer_config.json"] = _tokenizer_config(card)
    found = {name: (json.dumps(value, indent=2) + "\n").encode() for name, value in said.items()}
    found["model.safetensors"] = bytes(safetensors.numpy.save(weights(tensors), {"format": "pt"}))
    found["README.md"] = readme.encode()
    return found


def weights(tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The tensors by GPT-2's names and in its shapes."""
    return dict(_renamed(name, values) for name, values in tensors.items())


def _renamed(name: str, values: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    *place, layer, kind = name.split(".")
    if not place:
        return f"transformer.{_TOP[layer]}.{kind}", values
    is_turned = layer in _TRANSPOSED and kind == "weight"
    turned = np.ascontiguousarray(values.T) if is_turned else values
    return f"transformer.h.{place[-1]}.{_BLOCK[layer]}.{kind}", turned


def _config(card: ModelFileHeader) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": card.vocabulary,
        "n_positions": card.context,
        "n_embd": card.width,
        "n_layer": card.layers,
        "n_head": card.heads,
        "n_inner": 4 * card.width,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "float32",
    }


def _generation(card: ModelFileHeader) -> dict[str, Any]:
    """Positions end at the context, and so does a text: prompt and answer together."""
    return {
        "do_sample": True,
        "temperature": 0.8,
        "top_k": 0,
        "top_p": 0.95,
        "max_length": card.context,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def alphabet() -> list[str]:
    """The visible character that byte-level tokenizers write for each byte (GPT-2's `bytes_to_unicode`)."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = (byte for byte in range(256) if byte not in shown)
    moved = {byte: 256 + number for number, byte in enumerate(hidden)}
    return [chr(moved.get(byte, byte)) for byte in range(256)]


def _tokenizer(vocabulary: int) -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {char: byte for byte, char in enumerate(alphabet()[:vocabulary])},
            "merges": [],
        },
    }


def _tokenizer_config(card: ModelFileHeader) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": card.context,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
