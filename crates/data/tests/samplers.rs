//! Samplers and the random numbers behind them, equal to Megatron's, torch's and numpy's.
#![allow(clippy::unwrap_used)]

mod common;

use common::{i64s, read_json};
use ferrotron_base::mt19937::Mt19937;
use ferrotron_data::{Order, Sampler};
use serde_json::Value;

fn batches(v: &Value) -> Vec<Vec<usize>> {
    v.as_array().unwrap().iter().map(|b| i64s(b).iter().map(|&i| i as usize).collect()).collect()
}

#[test]
fn micro_batches_of_every_golden_sampler() {
    let file = read_json("misc/samplers.json");
    let cases = file["samplers"].as_array().unwrap();
    assert_eq!(cases.len(), 22);
    for case in cases {
        let number = |name: &str| case.get(name).and_then(Value::as_u64);
        let flag = |name: &str| case[name].as_bool().unwrap();
        let total = number("total").unwrap() as usize;
        let consumed = number("consumed").unwrap_or(0);
        let size = number("micro_batch_size").unwrap_or(1) as usize;
        let dp = number("dp").unwrap() as usize;
        let kind = case["kind"].as_str().unwrap();
        let order = match kind {
            "single" => Order::Single { drop_last: flag("drop_last") },
            "cyclic" => Order::Cyclic { data_sharding: flag("data_sharding") },
            _ => Order::Single { drop_last: false },
        };
        let mut sampler = Sampler::new(order, total, size, dp).unwrap();
        for (rank, expected) in case["ranks"].as_array().unwrap().iter().enumerate() {
            let what = format!("{kind} total {total} consumed {consumed} size {size} rank {rank} of {dp}");
            let found = sampler.micro_batches(consumed, rank).unwrap();
            let found: Vec<Vec<usize>> = if kind == "cyclic" {
                // Endless here, one epoch there.
                let expected_len = expected.as_array().unwrap().len();
                found.take(expected_len).collect::<Result<_, _>>().unwrap()
            } else {
                found.collect::<Result<_, _>>().unwrap()
            };
            if kind == "full_validation" {
                // Recorded as plain numbers; a rank that has none left gets an empty micro-batch here.
                let flat: Vec<i64> = found.iter().flatten().map(|&i| i as i64).collect();
                let expected: Vec<i64> = match expected.as_array().unwrap().first() {
                    Some(Value::Array(_)) => batches(expected).iter().flatten().map(|&i| i as i64).collect(),
                    _ => i64s(expected),
                };
                assert_eq!(flat, expected, "{what}");
            } else if size == 1000 {
                // Of these long micro-batches only the first 16 samples were recorded.
                let starts: Vec<Vec<usize>> = found.iter().map(|b| b[..16].to_vec()).collect();
                assert!(found.iter().all(|b| b.len() == size) && starts == batches(expected), "{what}");
            } else {
                assert_eq!(found, batches(expected), "{what}");
            }
        }
    }
}

#[test]
fn any_restart_continues_the_same_order() {
    for order in [
        Order::Single { drop_last: true },
        Order::Cyclic { data_sharding: true },
        Order::Cyclic { data_sharding: false },
    ] {
        let mut sampler = Sampler::new(order, 43, 2, 3).unwrap();
        let all: Vec<Vec<usize>> = sampler.micro_batches(0, 1).unwrap().take(15).map(|b| b.unwrap()).collect();
        for (k, batch) in all.iter().enumerate() {
            let first = sampler.micro_batches(6 * k as u64, 1).unwrap().next().unwrap().unwrap();
            assert_eq!(&first, batch);
            let mut global = Vec::new();
            assert!(sampler.global_batch(k as u64, 6, &mut global).unwrap());
            assert_eq!(global[2..4], batch[..]);
        }
    }
}

#[test]
fn an_epoch_visits_no_sample_twice() {
    for data_sharding in [false, true] {
        let mut sampler = Sampler::new(Order::Cyclic { data_sharding }, 47, 2, 4).unwrap();
        let mut seen = Vec::new();
        // Five global batches of 8 are the 40 samples of an epoch; 7 of 47 are left over.
        for k in 0..5 {
            let mut out = Vec::new();
            assert!(sampler.global_batch(k, 8, &mut out).unwrap());
            seen.extend(out);
        }
        assert!(seen.iter().all(|&i| i < 47));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 40);
    }
}

#[test]
fn numbers_that_do_not_fit_are_named() {
    let single = Order::Single { drop_last: true };
    let cyclic = Order::Cyclic { data_sharding: true };
    let message = |r: Result<Sampler, ferrotron_data::Error>| r.unwrap_err().to_string();
    assert!(message(Sampler::new(single, 0, 1, 1)).contains("0 samples"));
    assert!(message(Sampler::new(cyclic, 7, 2, 4)).contains("7 samples, fewer than the 8"));
    let mut sampler = Sampler::new(single, 40, 2, 4).unwrap();
    assert!(sampler.micro_batches(40, 0).err().unwrap().to_string().contains("40 were consumed"));
    assert!(sampler.micro_batch(0, 4, &mut Vec::new()).is_err());
    assert!(sampler.global_batch(0, 12, &mut Vec::new()).unwrap_err().to_string().contains("12"));
    assert!(!sampler.micro_batch(33, 0, &mut Vec::new()).unwrap(), "an incomplete batch is dropped");
    let mut sampler = Sampler::new(cyclic, 40, 2, 4).unwrap();
    let message = sampler.micro_batch(44, 0, &mut Vec::new()).unwrap_err().to_string();
    assert!(message.contains("4 into epoch 1"), "{message}");
}

#[test]
fn torch_randperm_and_numpy_shuffle() {
    for case in read_json("misc/samplers.json")["torch_randperm"].as_array().unwrap() {
        let (seed, n) = (case["seed"].as_u64().unwrap(), case["n"].as_u64().unwrap() as usize);
        let perm = Mt19937::new(seed as u32).torch_randperm(n);
        let expected = |name: &str| i64s(&case[name]).into_iter().map(|i| i as u64).collect::<Vec<_>>();
        let (first, last) = (expected("first"), expected("last"));
        assert_eq!(perm[..first.len()], first);
        assert_eq!(perm[n - last.len()..], last);
    }
    for case in read_json("misc/numpy_shuffle.json").as_array().unwrap() {
        let seed = case["seed"].as_u64().unwrap() as u32;
        assert_eq!(i64::from(Mt19937::new(seed).next_u32()), i64s(&case["first_u32"])[0]);
        let mut random = Mt19937::new(seed);
        for (name, n) in [("shuffle10", 10), ("then_shuffle300", 300)] {
            let mut a: Vec<i64> = (0..n).collect();
            random.shuffle(&mut a);
            assert_eq!(a, i64s(&case[name]), "seed {seed} {name}");
        }
    }
}
