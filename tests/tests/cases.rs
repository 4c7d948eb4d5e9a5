//! One rank of several that goes wrong: the cause is its own error, and the others end as its peers, naming it.

use std::sync::Arc;

use ferrotron_comm::{Fabric, Options};
use ferrotron_cpu::{CpuConfig, CpuDevice, StreamMode};
use ferrotron_device::{DevPtr, Device, DeviceInfo, Ops, Region, Stream, StreamRole, Tensor, host};
use ferrotron_tests::{on_ranks, resolved, trainer};
use ferrotron_train::step::Leave;
use ferrotron_train::{Error, Trainer};

const MODEL: &str = "--num-layers 2 --hidden-size 32 --ffn-hidden-size 64 --num-attention-heads 4 --seq-length 16 \
    --max-position-embeddings 16 --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
    --hidden-dropout 0 --attention-dropout 0 --tokenizer-type NullTokenizer --vocab-size 255 --mock-data \
    --split 100,0,0 --micro-batch-size 1 --global-batch-size 4 --train-iters 4 --lr 1e-2 --eval-iters 0 \
    --untie-embeddings-and-output-weights";
const RANKS: usize = 4;

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 1, streams: StreamMode::Inline }).expect("the CPU device")
}

/// Errors of all ranks: whose it is, and what the peers say.
fn errors(
    layout: &str,
    device: impl Fn(usize) -> Arc<dyn Device> + Sync,
    before: impl Fn(&mut Trainer) + Sync,
) -> Vec<(Error, String)> {
    let line = resolved(&format!("{MODEL} {layout}"), RANKS);
    let all = on_ranks(RANKS, Options::default(), |fabric: Arc<dyn Fabric>| {
        let mut t = trainer(device(fabric.rank()), &line, fabric)?;
        before(&mut t);
        let at = t.world.at.clone();
        let end = (0..4).try_for_each(|_| t.step(Leave::No).map(drop));
        Ok((end.expect_err("a rank that fails"), at.to_string()))
    });
    all.into_iter().map(|r| r.expect("built")).collect()
}

#[test]
fn a_nan_is_told_by_the_rank_that_has_it() {
    // A word whose vector is NaN, on all ranks, which only one rank's sample has.
    let nan = |t: &mut Trainer| {
        let rank = t.world.rank();
        let source = t.data.train.as_mut().expect("training data");
        let word = source.global_batch(0, 1).expect("a batch")[0].ids[0];
        let words = ferrotron_train::world::agree(&t.cx, word as u32).expect("a broadcast");
        // Rank 0's word: mock samples start at words of their own.
        let mine = source_has(t, words as i32);
        assert_eq!(mine, rank == 0, "rank {rank} {} word {words}", if mine { "has" } else { "lacks" });
        let (id, _) =
            t.cx.params.table().iter().find(|(_, p)| p.shard.name.contains("word_embeddings")).expect("an embedding");
        let mut row = t.cx.params.weight(id).rows_view(words as usize, 1);
        host::write_f32(&*t.cx.device, &t.cx.stream, &[f32::NAN; 32], &mut row).expect("written");
    };
    for layout in ["", "--use-distributed-optimizer --overlap-grad-reduce"] {
        let all = errors(layout, |_| Arc::new(cpu()), nan);
        for (rank, (e, at)) in all.iter().enumerate() {
            assert_eq!(at, "iteration 1, step numbers");
            assert_eq!(e.is_of_peer(), rank != 0, "rank {rank}: {e}");
            assert!(e.to_string().contains("the loss is not finite (NaN)"), "{e}");
            assert!(rank == 0 || e.to_string().contains("rank 0: iteration 1: "), "{e}");
        }
    }
}

fn source_has(t: &mut Trainer, word: i32) -> bool {
    let source = t.data.train.as_mut().expect("training data");
    source.global_batch(0, 1).expect("a batch").iter().any(|m| m.ids.contains(&word))
}

/// A CPU device that tells of less memory than there is.
struct Small {
    inner: CpuDevice,
    info: DeviceInfo,
}

impl Device for Small {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn ops(&self) -> &dyn Ops {
        self.inner.ops()
    }
    fn stream(&self, role: StreamRole) -> ferrotron_device::Result<Stream> {
        self.inner.stream(role)
    }
    fn reserve(&self, bytes: usize, what: &'static str) -> ferrotron_device::Result<Arc<dyn Region>> {
        self.inner.reserve(bytes, what)
    }
    fn upload(&self, s: &Stream, src: &[u8], dst: &mut Tensor) -> ferrotron_device::Result<()> {
        self.inner.upload(s, src, dst)
    }
    fn download(&self, s: &Stream, src: &Tensor, dst: &mut [u8]) -> ferrotron_device::Result<()> {
        self.inner.download(s, src, dst)
    }
    fn fill_bytes(&self, s: &Stream, ptr: DevPtr, bytes: usize, value: u8) -> ferrotron_device::Result<()> {
        self.inner.fill_bytes(s, ptr, bytes, value)
    }
}

#[test]
fn out_of_memory_on_one_rank_ends_all_with_its_cause() {
    // Activations of 24 samples of 64 tokens take more than 2 MiB, the least that a pool can be limited to.
    let large = "--seq-length 64 --max-position-embeddings 64 --micro-batch-size 24 --global-batch-size 96";
    let device = |rank: usize| -> Arc<dyn Device> {
        let inner = cpu();
        let mut info = inner.info().clone();
        if rank == 2 {
            info.memory = 2 << 20;
        }
        Arc::new(Small { inner, info })
    };
    let line = resolved(&format!("{MODEL} {large}"), RANKS);
    let all = on_ranks(RANKS, Options::default(), |fabric: Arc<dyn Fabric>| {
        let mut t = trainer(device(fabric.rank()), &line, fabric)?;
        t.step(Leave::No).map(drop)
    });
    for (rank, end) in all.into_iter().enumerate() {
        let e = end.expect_err("all ranks end");
        assert_eq!(e.is_of_peer(), rank != 2, "rank {rank}: {e}");
        assert!(e.to_string().contains("out of memory on cpu:0"), "{e}");
        assert!(e.to_string().contains("of 2097152 in use"), "{e}");
    }
}
