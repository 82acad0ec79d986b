"""llama-server's command line, as far as mgr uses it, and `--script`."""

import argparse


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(allow_abbrev=False)
    top.add_argument("--script")
    for flag in (
        "--model",
        "--host",
        "--alias",
        "--cache-ram",
        "--batch-size",
        "--n-gpu-layers",
        "--device",
        "--fit",
        "--tensor-split",
        "--threads",
        "--ubatch-size",
        "--chat-template-file",
        "--mmproj",
        "--pooling",
    ):
        top.add_argument(flag)
    top.add_argument("--lora", action="append")
    top.add_argument("--ctx-size", type=int, default=0)
    top.add_argument("--parallel", type=int, default=1)
    top.add_argument("--embedding", "--embeddings", action="store_true")
    for flag in (
        "--no-ui",
        "--slots",
        "--metrics",
        "--offline",
        "--version",
        "--no-mmproj-offload",
        "--jinja",
        "--reranking",
        "--kv-unified",
    ):
        top.add_argument(flag, action="store_true")
    return top
