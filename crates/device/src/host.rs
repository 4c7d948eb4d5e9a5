//! Typed copies between host slices and tensors.

use half::{bf16, f16};

use crate::{DType, Device, Error, Result, Stream, Tensor};

/// Bytes of `values` in the storage of `dtype`, rounded to nearest even.
pub fn encode(values: &[f32], dtype: DType) -> Result<Vec<u8>> {
    Ok(match dtype {
        DType::F32 => values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_ne_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_ne_bytes()).collect(),
        other => return Err(Error::mismatch("encode", "dtype", "F32, BF16 or F16", other)),
    })
}

/// Inverse of [`encode`].
pub fn decode(bytes: &[u8], dtype: DType) -> Result<Vec<f32>> {
    Ok(match dtype {
        DType::F32 => bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect(),
        DType::BF16 => bytes.chunks_exact(2).map(|b| bf16::from_ne_bytes([b[0], b[1]]).to_f32()).collect(),
        DType::F16 => bytes.chunks_exact(2).map(|b| f16::from_ne_bytes([b[0], b[1]]).to_f32()).collect(),
        other => return Err(Error::mismatch("decode", "dtype", "F32, BF16 or F16", other)),
    })
}

/// Writes f32 values, converted to the tensor's dtype.
pub fn write_f32(dev: &dyn Device, s: &Stream, values: &[f32], dst: &mut Tensor) -> Result<()> {
    crate::error::expect("write_f32", "elements", dst.numel(), values.len())?;
    dev.upload(s, &encode(values, dst.dtype())?, dst)
}

/// Writes i32 values (token ids, positions).
pub fn write_i32(dev: &dyn Device, s: &Stream, values: &[i32], dst: &mut Tensor) -> Result<()> {
    crate::error::expect("write_i32", "elements", dst.numel(), values.len())?;
    crate::error::expect("write_i32", "dtype", DType::I32, dst.dtype())?;
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    dev.upload(s, &bytes, dst)
}

/// Reads a float tensor as f32: a host sync.
pub fn read_f32(dev: &dyn Device, s: &Stream, src: &Tensor) -> Result<Vec<f32>> {
    let mut bytes = vec![0u8; src.bytes()];
    dev.download(s, src, &mut bytes)?;
    decode(&bytes, src.dtype())
}
