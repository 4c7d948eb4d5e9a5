"""What Python's own programs make of a run: TensorBoard, MLflow and Weights & Biases read its files, torch starts it.

python python_check.py FOLDER_OF_BINARIES    (needs torch, tensorboard, mlflow-skinny, wandb)
"""

import gzip
import http.server
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

MODEL = (
    "--num-layers 2 --hidden-size 32 --ffn-hidden-size 48 --num-attention-heads 4 --seq-length 24 "
    "--max-position-embeddings 24 --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear "
    "--tokenizer-type NullTokenizer --vocab-size 61 --mock-data --split 80,10,10 --micro-batch-size 1 "
    "--global-batch-size 4 --train-iters 12 --lr 1e-2 --eval-interval 6 --eval-iters 2 --log-interval 1 --device cpu"
).split()


def close(a, b):
    """Equal to f32's digits."""
    return math.isclose(a, b, rel_tol=1e-6)


def run(command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def losses(log):
    lines = [line for line in log.splitlines() if "] iteration" in line]
    return [[f.strip() for f in line.split("|") if "loss:" in f or "grad norm:" in f] for line in lines]


def tensorboard(folder, rows):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    points = events.Scalars("lm loss")
    assert [p.step for p in points] == [r["iteration"] for r in rows]
    assert all(close(p.value, r["lm loss"]) for p, r in zip(points, rows))
    assert "lm loss validation" in events.Tags()["scalars"]
    return f"{len(events.Tags()['scalars'])} tags"


def mlflow(folder, rows):
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # releases of 2026 ask before they read one
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=folder.as_uri())
    experiment = client.get_experiment_by_name("tiny")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.status, found.data.params["num_layers"]) == ("FINISHED", "2"), found
    history = client.get_metric_history(found.info.run_id, "lm loss")
    assert [m.step for m in history] == [r["iteration"] for r in rows]
    assert all(close(m.value, r["lm loss"]) for m, r in zip(history, rows))
    return f"{len(found.data.metrics)} metrics, {len(found.data.params)} parameters"


class StandIn(http.server.BaseHTTPRequestHandler):
    """Answers as much of the server's protocol as an upload needs, and keeps what it is sent."""

    got = []

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        StandIn.got.append((self.path, body))
        data = {}
        if self.path.startswith("/graphql"):
            asked = json.loads(body)
            project = {"id": "cA", "name": "tiny", "entity": {"id": "ZQ", "name": "me"}}
            if "upsertBucket" in asked["query"]:
                bucket = {"id": "cg", "name": "r", "displayName": "first", "config": "{}", "project": project}
                data["upsertBucket"] = {"bucket": bucket, "inserted": True}
            if "createRunFiles" in asked["query"]:
                at = f"http://127.0.0.1:{self.server.server_address[1]}/up/"
                files = [{"name": n, "uploadUrl": at + n} for n in asked["variables"]["files"]]
                data["createRunFiles"] = {"runID": "cg", "uploadHeaders": [], "files": files}
        out = json.dumps({"data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_):
        pass


def wandb(folder, rows, home):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = {**os.environ, "HOME": str(home), "WANDB_API_KEY": "a" * 40}
    env["WANDB_BASE_URL"] = f"http://127.0.0.1:{server.server_address[1]}"
    run([sys.executable, "-m", "wandb", "sync", folder], env=env, cwd=home, timeout=120)
    streams = [json.loads(body) for path, body in StandIn.got if path.endswith("/file_stream")]
    lines = [line for s in streams for line in s.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])]
    history = [json.loads(line) for line in lines]
    assert [h["_step"] for h in history] == [r["iteration"] for r in rows]
    assert all(close(h["lm loss"], r["lm loss"]) for h, r in zip(history, rows))
    assert any(s.get("complete") and s.get("exitcode") == 0 for s in streams), "the run is complete"
    return f"{len(history)} rows uploaded"


def torch(trainer, home):
    words = MODEL + ["--use-distributed-optimizer"]
    want = losses(run([trainer, *words, "--thread-ranks", 2]))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for starter in (["torch.distributed.run"], ["torch.distributed.launch", "--use_env"]):
        command = [sys.executable, "-m", *starter, "--nproc_per_node=2", "--master_port=29611", "--no_python", trainer]
        got = losses(run([*command, *words], env=env, cwd=home, timeout=300))
        assert got == want, (starter, got, want)
    return f"{len(want)} iterations, the digits of threads"


def main():
    trainer = pathlib.Path(sys.argv[1]).absolute() / "pretrain_gpt"
    with tempfile.TemporaryDirectory() as home:
        home = pathlib.Path(home)
        log = run(
            [trainer, *MODEL, "--tensorboard-dir", home / "tb", "--mlflow-dir", home / "mlruns"]
            + ["--mlflow-experiment", "tiny", "--wandb-project", "tiny", "--wandb-exp-name", "first"]
            + ["--wandb-save-dir", home]
        )
        rows = [json.loads(line) for line in (home / "tb" / "metrics.jsonl").read_text().splitlines()]
        assert len(rows) == 12, log
        print("tensorboard:", tensorboard(home / "tb", rows))
        print("mlflow:", mlflow(home / "mlruns", rows))
        (folder,) = (home / "wandb").glob("offline-run-*")
        print("wandb:", wandb(folder, rows, home))
        print("torch:", torch(trainer, home))


main()
