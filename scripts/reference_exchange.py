#!/usr/bin/env python3
"""Times the head exchange of the LTX-2 Python reference, for scripts/bench_vs_reference.sh.

    reference_exchange.py build --reference DIR --build DIR
    reference_exchange.py run --build DIR --ranks 2 --tokens 24576 [--json FILE]

`build` compiles its extension all2all from DIR/packages/ltx-kernels/csrc (or DIR itself, where that
holds all2all/ and include/). The copy loses one kind of check, that a tensor's device has the
number of its rank: so that ranks can share a GPU. `run` starts the ranks and prints one row an
operation: q, k and v of a clip of so many tokens, 32 heads of 128, bfloat16, each through an
instance of its own as its model does, and the way back of two such tensors. Calls run one behind
another between two waits for the GPU; the slowest rank counts; results are checked.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import tempfile
import time

HEADS, HEAD_DIM = 32, 128
NAME = "all2all_cpp"
DEVICE_CHECK = "EP_HOST_ASSERT(x.device().index() == rank);"


def build(reference, folder):
    from torch.utils.cpp_extension import load

    source = pathlib.Path(reference) / "packages" / "ltx-kernels" / "csrc"
    if not source.is_dir():
        source = pathlib.Path(reference)
    copy = pathlib.Path(folder).resolve()
    shutil.rmtree(copy, ignore_errors=True)
    for part in ("all2all", "include"):
        shutil.copytree(source / part, copy / part)
    main = copy / "all2all" / "all2all.cpp"
    text = main.read_text()
    if DEVICE_CHECK not in text:
        raise SystemExit(f"reference_exchange.py: no {DEVICE_CHECK} in {source}")
    main.write_text(text.replace(DEVICE_CHECK, ""))
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    kernels = copy / "all2all" / "cuda"
    load(NAME, [str(main), str(kernels / "all2all_heads.cu"), str(kernels / "allgather.cu")],
         extra_include_paths=[str(copy / "all2all"), str(copy / "include")],
         extra_cflags=["-O3"], extra_cuda_cflags=["-O3"], build_directory=str(copy))


def import_built(folder):
    import torch  # the extension needs its libraries

    spec = importlib.util.spec_from_file_location(NAME, pathlib.Path(folder) / f"{NAME}.so")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return torch, module


def one_rank(rank, args, store):
    torch, extension = import_built(args.build)
    import torch.distributed as dist

    ranks, width = args.ranks, HEADS * HEAD_DIM
    gpus = torch.cuda.device_count()
    torch.cuda.set_device(rank % gpus)
    sharing = -(-ranks // gpus)
    processors = torch.cuda.get_device_properties(rank % gpus).multi_processor_count // sharing
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    own = args.tokens // ranks
    instances = []
    for _ in range(4):
        instance = extension.All2All(rank, ranks, own, width, processors, torch.bfloat16)
        handles = [None] * ranks
        dist.all_gather_object(handles, instance.get_local_ipc_handle())
        instance.sync(handles)
        instance.set_rank_tokens([own] * ranks)
        instances.append(instance)
    generator = torch.Generator(device="cuda").manual_seed(1)
    whole = torch.randn(3, 1, own * ranks, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16,
                        generator=generator)
    mine = whole[:, :, rank * own:(rank + 1) * own].contiguous()
    share = HEADS // ranks
    expected = whole[:, :, :, rank * share:(rank + 1) * share]
    heads = expected[0].contiguous()

    def there():
        return [instances[i].send_recv_heads(mine[i], False) for i in range(3)]

    # Two instances in turn: a rank that is one call ahead overruns the barrier of a single one.
    def back():
        return [instance.gather_heads(heads, False) for instance in instances[2:]]

    def is_right(name, results):
        if name == "exchange":
            return all(torch.equal(results[i], expected[i]) for i in range(3))
        return all(torch.equal(result, mine[0]) for result in results)

    def sample(run):
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(args.calls):
            results = run()
        torch.cuda.synchronize()
        return 1e6 * (time.perf_counter() - start) / args.calls, results

    records = []
    part = mine[0].numel() * mine.element_size()
    for name, run, tensors in (("exchange", there, 3), ("exchange_back", back, 2)):
        times, right = [], True
        for i in range(args.iters + 3):
            spent, results = sample(run)
            right = is_right(name, results) and right
            if i >= 3:
                times.append(spent)
        everyone = [None] * ranks
        dist.all_gather_object(everyone, (times, right))
        p50 = statistics.median(max(rank_times) for rank_times in zip(*(e[0] for e in everyone)))
        records.append({"operation": name, "size_bytes": tensors * part, "tokens": own,
                        "p50_us": round(p50, 2), "algbw_gbps": round(1e-3 * tensors * part / p50, 2),
                        "right": all(e[1] for e in everyone)})
    if rank == 0:
        for record in records:
            print("  {operation:<17} {size_bytes:>10} {tokens:>7} {p50_us:>10.1f} us "
                  "{algbw_gbps:>8.2f} GB/s  {0}".format("right" if record["right"] else "WRONG",
                                                        **record), flush=True)
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps({"ranks": ranks, "records": records}))
    dist.barrier()
    for instance in instances:
        instance.destroy()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["build", "run"])
    parser.add_argument("--reference", help="for build")
    parser.add_argument("--build", required=True, help="folder of the built extension")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=24576, help="of the clip")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.command == "build":
        return build(args.reference, args.build)
    import torch.multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(one_rank, (args, f"{folder}/store"), nprocs=args.ranks)
    return None


if __name__ == "__main__":
    main()
