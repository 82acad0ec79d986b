"""The engine from the `xllamacpp` wheel, as a program with llama-server's command line.

A program of its own: nothing of mgr is imported, and mgr runs it like any other engine. It takes every flag that
mgr passes (`launch.py`), lists them in its `--help`, and reads its key from LLAMA_API_KEY. The wheel ignores
LLAMA_ARG_* variables and listens while it loads.
"""

import argparse
import os
import sys
import threading
from pathlib import Path
from typing import Any


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="embedded", description=__doc__, allow_abbrev=False)
    top.add_argument("-m", "--model", metavar="FILE")
    top.add_argument(
        "--host", metavar="HOST", default="127.0.0.1", help="address, or a path that ends in .sock"
    )
    top.add_argument("--port", type=int, default=8080)
    top.add_argument("-a", "--alias", metavar="NAME")
    top.add_argument("-c", "--ctx-size", type=int, default=0, help="tokens, over all slots")
    top.add_argument("-np", "--parallel", type=int, default=1, help="slots")
    top.add_argument("-b", "--batch-size", type=int, default=2048)
    top.add_argument("-ub", "--ubatch-size", type=int, default=512)
    top.add_argument("-t", "--threads", type=int, default=-1)
    top.add_argument("-ngl", "--n-gpu-layers", type=int)
    top.add_argument("--main-gpu", type=int)
    top.add_argument("--device", metavar="NAMES", help="GPUs as --list-devices names them, or none")
    top.add_argument("--tensor-split", metavar="SHARES", help="how several GPUs divide the layers, like 3,1")
    top.add_argument("--fit", choices=["on", "off"], default="on", help="place layers by the memory there is")
    top.add_argument("--no-mmproj-offload", action="store_true")
    top.add_argument("--jinja", action="store_true", help="how templates are read, always")
    top.add_argument("--chat-template-file", metavar="FILE", help="in Jinja, instead of the model's own")
    top.add_argument("--mmproj", metavar="FILE", help="makes embeddings of images or sound")
    top.add_argument("--lora", metavar="FILE", action="append", default=[], help="may be given several times")
    top.add_argument("--embedding", action="store_true", help="serve embeddings too")
    top.add_argument("-kvu", "--kv-unified", action="store_true", help="one cache for all slots")
    top.add_argument("--pooling", choices=["none", "mean", "cls", "last", "rank"])
    top.add_argument("--reranking", action="store_true")
    top.add_argument("--load-mode", choices=["auto", "mmap", "none"], default="auto")
    top.add_argument("--cache-ram", type=int, metavar="MIB", default=8192)
    top.add_argument("--ctx-checkpoints", type=int, metavar="N", default=32)
    top.add_argument("--sse-ping-interval", type=int, metavar="SECONDS")
    top.add_argument("--no-ui", action="store_true")
    top.add_argument("--slots", action="store_true")
    top.add_argument("--metrics", action="store_true")
    top.add_argument("--offline", action="store_true")
    top.add_argument("--list-devices", action="store_true")
    top.add_argument("--version", action="store_true")
    return top


def serve(options: argparse.Namespace) -> None:
    """Loads the model and serves it for ever; a signal ends the process at once."""
    import xllamacpp  # noqa: PLC0415 - --help must answer without it

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    params.n_batch = options.batch_size
    params.n_ubatch = min(options.ubatch_size, options.batch_size)
    params.cache_ram_mib = options.cache_ram
    params.n_ctx_checkpoints = options.ctx_checkpoints
    params.endpoint_slots = options.slots
    params.endpoint_metrics = options.metrics
    params.offline = options.offline
    params.ui = not options.no_ui
    params.load_mode = xllamacpp.llama_load_mode[f"LLAMA_LOAD_MODE_{options.load_mode.upper()}"]
    set_task(params, options)
    if options.threads > 0:
        params.cpuparams.n_threads = options.threads
    if options.alias:
        params.model_alias = {options.alias}
    set_gpus(params, options)
    if options.sse_ping_interval is not None:
        params.sse_ping_interval = options.sse_ping_interval
    if key := os.environ.get("LLAMA_API_KEY"):
        params.api_keys = [key]
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)  # noqa: T201
    threading.Event().wait()


def set_gpus(params: Any, options: argparse.Namespace) -> None:
    """Which layers go where. The library has no list of devices: it is none, one (by its number), or all."""
    import xllamacpp  # noqa: PLC0415

    params.fit_params = options.fit == "on"
    params.mmproj_use_gpu = not options.no_mmproj_offload
    if options.n_gpu_layers is not None:
        params.n_gpu_layers = options.n_gpu_layers
    if options.main_gpu is not None:
        params.main_gpu = options.main_gpu
    if options.tensor_split:
        shares = [float(share) for share in options.tensor_split.split(",")]
        params.tensor_split = shares + [0.0] * (len(params.tensor_split) - len(shares))
    names = (options.device or "").split(",")
    if names == ["none"]:
        params.n_gpu_layers = 0
    elif names != [""] and len(names) == 1:
        found = [device["name"] for device in xllamacpp.get_device_info() if not is_cpu(device)]
        params.split_mode = xllamacpp.llama_split_mode.LLAMA_SPLIT_MODE_NONE
        params.main_gpu = found.index(names[0])


def is_cpu(device: "dict[str, Any]") -> bool:
    return bool(device["type"].name.endswith("_CPU"))


def set_task(params: Any, options: argparse.Namespace) -> None:
    """What the engine is for. Reranking is embedding with the pooling "rank", as with llama-server."""
    import xllamacpp  # noqa: PLC0415

    params.embedding = options.embedding or options.reranking
    params.kv_unified = options.kv_unified
    pooling = "rank" if options.reranking else options.pooling
    if pooling is not None:
        params.pooling_type = xllamacpp.llama_pooling_type[f"LLAMA_POOLING_TYPE_{pooling.upper()}"]
    if options.chat_template_file:
        params.chat_template = Path(options.chat_template_file).read_text(encoding="utf-8")
    if options.mmproj:
        params.mmproj.path = options.mmproj
    adapters = []
    for path in options.lora:
        adapter = xllamacpp.CommonAdapterLoraInfo()
        adapter.path = path
        adapter.scale = 1.0
        adapters.append(adapter)
    params.lora_adapters = adapters


def devices(found: "list[dict[str, Any]]") -> str:
    """All but the CPU, in the words of llama-server's `--list-devices`."""
    lines = [
        f"  {device['name']}: {device['description']} "
        f"({device['memory_total'] >> 20} MiB, {device['memory_free'] >> 20} MiB free)"
        for device in found
        if not is_cpu(device)
    ]
    return "\n".join(["Available devices:", *(lines or ["  (none)"])])


def main() -> None:
    options = parser().parse_args()
    if options.version or options.list_devices:
        import xllamacpp  # noqa: PLC0415

        version = f"version: {xllamacpp.__version__}"
        print(version if options.version else devices(xllamacpp.get_device_info()))  # noqa: T201
        return
    if not options.model:
        sys.exit("error: --model is needed")
    try:
        serve(options)
    except (RuntimeError, OSError) as error:
        # The wheel raises this for every failure; its log lines above say which.
        sys.exit(f"error: the server did not start: {error}")


if __name__ == "__main__":
    main()
