//! cublasLt: column-major products in float, with the bias that may follow.

use std::ffi::{c_char, c_int, c_void};

use ferrotron_cuda_sys::{
    self as sys, CUstream, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreference_t, cublasLtMatrixLayout_t, cublasStatus_t,
    cudaDataType_t,
};
use ferrotron_mock::{Access, Fault};
use half::{bf16, f16};

use crate::driver::put;
use crate::world::{Object, World, lock, world};

const NOT_INITIALIZED: i32 = 1;
const INVALID_VALUE: i32 = 7;
const NOT_SUPPORTED: i32 = 15;
/// Workspace that every algorithm of the mock asks for.
const WORKSPACE: usize = 1 << 16;
/// First word of the mock's algorithms.
const MAGIC: u64 = 0x6c74_616c_676f;

/// A kind of product.
#[derive(Clone, Copy, Default)]
pub struct Desc {
    transposed: [bool; 2],
    epilogue: u32,
    bias: u64,
    /// What GELU is applied to, and its elements from column to column.
    inner: (u64, i64),
}

/// A matrix.
#[derive(Clone, Copy, PartialEq)]
pub struct Layout {
    dtype: cudaDataType_t,
    rows: usize,
    cols: usize,
    ld: usize,
}

/// What an algorithm may rely on and need.
#[derive(Clone, Copy)]
pub struct Preference {
    /// Of A, B, C and D.
    alignment: [u32; 4],
    workspace: u64,
}

type Answer<T> = Result<T, cublasStatus_t>;

impl Desc {
    fn adds_bias(&self) -> bool {
        [sys::CUBLASLT_EPILOGUE_BIAS, sys::CUBLASLT_EPILOGUE_GELU_AUX_BIAS].contains(&self.epilogue)
    }

    fn has_inner(&self) -> bool {
        let with =
            [sys::CUBLASLT_EPILOGUE_GELU_AUX, sys::CUBLASLT_EPILOGUE_GELU_AUX_BIAS, sys::CUBLASLT_EPILOGUE_DGELU];
        with.contains(&self.epilogue)
    }
}

/// GELU by tanh, and its slope, in double.
fn gelu(x: f32) -> (f32, f32) {
    const C: f64 = 0.797_884_560_802_865_4; // sqrt(2 / pi)
    let x = f64::from(x);
    let t = (C * (x + 0.044715 * x * x * x)).tanh();
    let slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * C * (1.0 + 3.0 * 0.044715 * x * x);
    ((0.5 * x * (1.0 + t)) as f32, slope as f32)
}

fn answer(name: &str, body: impl FnOnce(&'static World) -> Answer<()>) -> cublasStatus_t {
    let w = world();
    match w.devices[w.current().unwrap_or(0)].faults().visit(name) {
        Some(code) => code,
        None => body(w).err().unwrap_or(0),
    }
}

fn invalid<T>(_: T) -> cublasStatus_t {
    INVALID_VALUE
}

/// Bytes of an element.
fn size(dtype: cudaDataType_t) -> Answer<usize> {
    match dtype {
        sys::CUDA_R_32F => Ok(4),
        sys::CUDA_R_16F | sys::CUDA_R_16BF => Ok(2),
        _ => Err(NOT_SUPPORTED),
    }
}

macro_rules! calls {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) |$w:ident| $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> cublasStatus_t {
            answer(stringify!($name), |$w| $body)
        }
    )*};
}

/// The version that the mock plays: 12.4.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    120_400
}

/// Some names of the library's.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusString(status: cublasStatus_t) -> *const c_char {
    match status {
        NOT_INITIALIZED => c"CUBLAS_STATUS_NOT_INITIALIZED",
        INVALID_VALUE => c"CUBLAS_STATUS_INVALID_VALUE",
        NOT_SUPPORTED => c"CUBLAS_STATUS_NOT_SUPPORTED",
        _ => c"an error of the mock",
    }
    .as_ptr()
}

/// A number that an attribute points to, of 4 or 8 bytes.
///
/// # Safety
/// `value` points to as many bytes.
unsafe fn number(value: *const c_void, bytes: usize) -> Answer<u64> {
    // SAFETY: as many bytes, by the contract above.
    unsafe {
        match bytes {
            4 => Ok(u64::from(value.cast::<u32>().read_unaligned())),
            8 => Ok(value.cast::<u64>().read_unaligned()),
            _ => Err(INVALID_VALUE),
        }
    }
}

calls! {
    fn cublasLtCreate(handle: *mut cublasLtHandle_t) |w| {
        let device = w.current().map_err(|_| NOT_INITIALIZED)?;
        // SAFETY: out-parameter.
        unsafe { put(handle, w.add(Object::Lt { device }) as *mut c_void) }.map_err(invalid)
    }
    fn cublasLtDestroy(handle: cublasLtHandle_t) |w| {
        w.remove(handle as usize).map(drop).map_err(invalid)
    }
    fn cublasLtMatrixLayoutCreate(
        layout: *mut cublasLtMatrixLayout_t, dtype: cudaDataType_t, rows: u64, cols: u64, ld: i64,
    ) |w| {
        size(dtype)?;
        let (rows, cols) = (rows as usize, cols as usize);
        let ld = usize::try_from(ld).ok().filter(|&ld| ld >= rows).ok_or(INVALID_VALUE)?;
        let made = w.add(Object::Layout(Layout { dtype, rows, cols, ld }));
        // SAFETY: out-parameter.
        unsafe { put(layout, made as *mut c_void) }.map_err(invalid)
    }
    fn cublasLtMatrixLayoutDestroy(layout: cublasLtMatrixLayout_t) |w| {
        w.remove(layout as usize).map(drop).map_err(invalid)
    }
    fn cublasLtMatmulDescCreate(desc: *mut cublasLtMatmulDesc_t, compute: c_int, scale: cudaDataType_t) |w| {
        if (compute, scale) != (sys::CUBLAS_COMPUTE_32F, sys::CUDA_R_32F) {
            return Err(NOT_SUPPORTED);
        }
        let made = w.add(Object::Desc(Desc { epilogue: sys::CUBLASLT_EPILOGUE_DEFAULT, ..Desc::default() }));
        // SAFETY: out-parameter.
        unsafe { put(desc, made as *mut c_void) }.map_err(invalid)
    }
    fn cublasLtMatmulDescDestroy(desc: cublasLtMatmulDesc_t) |w| {
        w.remove(desc as usize).map(drop).map_err(invalid)
    }
    fn cublasLtMatmulDescSetAttribute(
        desc: cublasLtMatmulDesc_t, attribute: c_int, value: *const c_void, bytes: usize,
    ) |w| {
        // SAFETY: the caller's value.
        let v = unsafe { number(value, bytes) }?;
        let mut objects = lock(&w.objects);
        let Some(Object::Desc(d)) = objects.get_mut(&(desc as usize)) else { return Err(INVALID_VALUE) };
        match (attribute, bytes) {
            (sys::CUBLASLT_MATMUL_DESC_TRANSA, 4) => d.transposed[0] = v == 1,
            (sys::CUBLASLT_MATMUL_DESC_TRANSB, 4) => d.transposed[1] = v == 1,
            (sys::CUBLASLT_MATMUL_DESC_EPILOGUE, 4) => d.epilogue = v as u32,
            (sys::CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8) => d.bias = v,
            (sys::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 8) => d.inner.0 = v,
            (sys::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 8) => d.inner.1 = v as i64,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
    fn cublasLtMatmulPreferenceCreate(preference: *mut cublasLtMatmulPreference_t) |w| {
        let made = w.add(Object::Preference(Preference { alignment: [256; 4], workspace: 0 }));
        // SAFETY: out-parameter.
        unsafe { put(preference, made as *mut c_void) }.map_err(invalid)
    }
    fn cublasLtMatmulPreferenceDestroy(preference: cublasLtMatmulPreference_t) |w| {
        w.remove(preference as usize).map(drop).map_err(invalid)
    }
    fn cublasLtMatmulPreferenceSetAttribute(
        preference: cublasLtMatmulPreference_t, attribute: c_int, value: *const c_void, bytes: usize,
    ) |w| {
        // SAFETY: the caller's value.
        let v = unsafe { number(value, bytes) }?;
        let mut objects = lock(&w.objects);
        let Some(Object::Preference(p)) = objects.get_mut(&(preference as usize)) else { return Err(INVALID_VALUE) };
        let first = sys::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
        match (attribute, bytes) {
            (sys::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 8) => p.workspace = v,
            (sys::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 4) => {}
            (a, 4) if (first..first + 4).contains(&a) => p.alignment[(a - first) as usize] = v as u32,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
    fn cublasLtMatmulAlgoGetHeuristic(
        handle: cublasLtHandle_t, desc: cublasLtMatmulDesc_t, a: cublasLtMatrixLayout_t, b: cublasLtMatrixLayout_t,
        c: cublasLtMatrixLayout_t, d: cublasLtMatrixLayout_t, preference: cublasLtMatmulPreference_t, wanted: c_int,
        results: *mut cublasLtMatmulHeuristicResult_t, found: *mut c_int,
    ) |w| {
        let p = problem(w, handle, desc, [a, b, c, d])?;
        let Object::Preference(preference) = w.get(preference as usize).map_err(invalid)? else {
            return Err(INVALID_VALUE);
        };
        if wanted < 1 || preference.workspace < WORKSPACE as u64 {
            return Err(NOT_SUPPORTED);
        }
        let [a, b, c, d] = preference.alignment.map(u64::from);
        let algo = cublasLtMatmulAlgo_t { data: [MAGIC, p.fingerprint(), a, b, c, d, 0, 0] };
        let best = cublasLtMatmulHeuristicResult_t { algo, workspaceSize: WORKSPACE, ..Default::default() };
        // SAFETY: out-parameters, room for one result.
        unsafe { put(results, best).and(put(found, 1)) }.map_err(invalid)
    }
    fn cublasLtMatmul(
        handle: cublasLtHandle_t, desc: cublasLtMatmulDesc_t, alpha: *const c_void, a: *const c_void,
        a_layout: cublasLtMatrixLayout_t, b: *const c_void, b_layout: cublasLtMatrixLayout_t, beta: *const c_void,
        c: *const c_void, c_layout: cublasLtMatrixLayout_t, d: *mut c_void, d_layout: cublasLtMatrixLayout_t,
        algo: *const cublasLtMatmulAlgo_t, workspace: *mut c_void, workspace_bytes: usize, stream: CUstream,
    ) |w| {
        let p = problem(w, handle, desc, [a_layout, b_layout, c_layout, d_layout])?;
        let at = [a as usize, b as usize, c as usize, d as usize];
        // SAFETY: host floats, and an algorithm that a proposal gave.
        let (alpha, beta, algo) = unsafe { (*alpha.cast::<f32>(), *beta.cast::<f32>(), (*algo).data) };
        if algo[0] != MAGIC || algo[1] != p.fingerprint() || workspace_bytes < WORKSPACE {
            return Err(INVALID_VALUE);
        }
        if (0..4).any(|i| !at[i].is_multiple_of(algo[2 + i] as usize)) {
            return Err(INVALID_VALUE); // a real one may fault, or be right by luck
        }
        let bytes = |l: &Layout| size(l.dtype).map(|s| s * (l.ld * l.cols.saturating_sub(1) + l.rows));
        let [la, lb, lc, ld] = p.layouts;
        let mut accesses = vec![Access::write(at[3], bytes(&ld)?), Access::write(workspace as usize, WORKSPACE)];
        accesses.extend([Access::read(at[0], bytes(&la)?), Access::read(at[1], bytes(&lb)?)]);
        if beta != 0.0 {
            accesses.push(Access::read(at[2], bytes(&lc)?));
        }
        let bias = p.desc.adds_bias().then_some(p.desc.bias as usize);
        if let Some(bias) = bias {
            accesses.push(Access::read(bias, ld.rows * size(ld.dtype)?));
        }
        let inner = p.desc.has_inner().then_some(p.desc.inner.0 as usize);
        if let Some(at) = inner {
            let touched = size(ld.dtype)? * (p.desc.inner.1 as usize * (ld.cols - 1) + ld.rows);
            let reads = p.desc.epilogue == sys::CUBLASLT_EPILOGUE_DGELU;
            accesses.insert(0, if reads { Access::read(at, touched) } else { Access::write(at, touched) });
        }
        let (stream, workspace) = (w.stream(stream as usize).map_err(invalid)?, workspace as usize);
        let run = move || -> Result<(), Fault> {
            // SAFETY: the engine found all of it live; it is this task's while it runs.
            unsafe {
                std::ptr::write_bytes(workspace as *mut u8, 0xff, WORKSPACE);
                p.compute(alpha, beta, at, bias, inner);
            }
            Ok(())
        };
        w.enqueue(stream, "cublasLtMatmul", accesses, run).map_err(invalid)
    }
}

/// A product: `D[m,n] = alpha op(A) op(B) + beta C`.
struct Problem {
    desc: Desc,
    layouts: [Layout; 4],
    m: usize,
    n: usize,
    k: usize,
}

fn problem(
    w: &World,
    handle: cublasLtHandle_t,
    desc: cublasLtMatmulDesc_t,
    layouts: [cublasLtMatrixLayout_t; 4],
) -> Answer<Problem> {
    let current = w.current().map_err(|_| NOT_INITIALIZED)?;
    match w.get(handle as usize).map_err(|_| NOT_INITIALIZED)? {
        Object::Lt { device } if device == current => {}
        _ => return Err(NOT_INITIALIZED),
    }
    let Object::Desc(desc) = w.get(desc as usize).map_err(invalid)? else { return Err(INVALID_VALUE) };
    let mut all = [Layout { dtype: 0, rows: 0, cols: 0, ld: 0 }; 4];
    for (l, handle) in all.iter_mut().zip(layouts) {
        let Object::Layout(found) = w.get(handle as usize).map_err(invalid)? else { return Err(INVALID_VALUE) };
        *l = found;
    }
    let [a, b, c, d] = all;
    let dims = |l: Layout, t: bool| if t { (l.cols, l.rows) } else { (l.rows, l.cols) };
    let ((m, k), (kb, n)) = (dims(a, desc.transposed[0]), dims(b, desc.transposed[1]));
    let types = a.dtype == b.dtype && c == d && (d.dtype == a.dtype || d.dtype == sys::CUDA_R_32F);
    let plain = desc.epilogue == sys::CUBLASLT_EPILOGUE_DEFAULT;
    if !types || !(plain || desc.adds_bias() || desc.has_inner()) {
        return Err(NOT_SUPPORTED);
    }
    let is_there = |at: u64| at != 0 && at.is_multiple_of(16);
    if desc.adds_bias() && !is_there(desc.bias) {
        return Err(INVALID_VALUE); // a proposal depends on where the bias is
    }
    if desc.has_inner() && (!is_there(desc.inner.0) || desc.inner.1 < d.rows as i64 || desc.inner.1 % 8 != 0) {
        return Err(INVALID_VALUE);
    }
    if k != kb || (m, n) != (d.rows, d.cols) || m * n * k == 0 {
        return Err(INVALID_VALUE);
    }
    Ok(Problem { desc, layouts: all, m, n, k })
}

impl Problem {
    /// A number for what an algorithm is proposed for.
    fn fingerprint(&self) -> u64 {
        let [a, b, _, d] = self.layouts;
        let [ta, tb] = self.desc.transposed.map(usize::from);
        let facts = [self.m, self.n, self.k, a.ld, b.ld, d.ld, a.dtype as usize, d.dtype as usize, ta, tb];
        let all = facts.into_iter().chain([self.desc.epilogue as usize]);
        all.fold(0xcbf2_9ce4_8422_2325, |h, f| (h ^ f as u64).wrapping_mul(0x0100_0000_01b3))
    }

    /// The product; sums in double, so that the mock adds no error of its own.
    ///
    /// # Safety
    /// Matrices at their addresses, the bias of D's type.
    unsafe fn compute(&self, alpha: f32, beta: f32, at: [usize; 4], bias: Option<usize>, inner: Option<usize>) {
        let [la, lb, lc, ld] = self.layouts;
        let [ta, tb] = self.desc.transposed;
        let (m, n, k) = (self.m, self.n, self.k);
        // op(A) by rows, op(B) by columns
        // SAFETY: inside the matrices.
        let a: Vec<f32> =
            each(m, k, |i, l| unsafe { get(la.dtype, at[0], if ta { i * la.ld + l } else { l * la.ld + i }) });
        // SAFETY: as above.
        let b: Vec<f32> =
            each(n, k, |j, l| unsafe { get(lb.dtype, at[1], if tb { l * lb.ld + j } else { j * lb.ld + l }) });
        for j in 0..n {
            for i in 0..m {
                let pairs = a[i * k..][..k].iter().zip(&b[j * k..][..k]);
                let sum: f64 = pairs.map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
                let mut v = alpha * sum as f32;
                if beta != 0.0 {
                    // SAFETY: as above.
                    v += beta * unsafe { get(lc.dtype, at[2], j * lc.ld + i) };
                }
                if let Some(bias) = bias {
                    // SAFETY: as many elements as D has rows.
                    v += unsafe { get(ld.dtype, bias, i) };
                }
                if let Some(inner) = inner {
                    let place = j * self.desc.inner.1 as usize + i;
                    if self.desc.epilogue == sys::CUBLASLT_EPILOGUE_DGELU {
                        // SAFETY: as above.
                        v *= gelu(unsafe { get(ld.dtype, inner, place) }).1;
                    } else {
                        // SAFETY: as above.
                        unsafe { set(ld.dtype, inner, place, v) };
                        v = gelu(v).0;
                    }
                }
                // SAFETY: as above.
                unsafe { set(ld.dtype, at[3], j * ld.ld + i, v) };
            }
        }
    }
}

fn each(outer: usize, inner: usize, f: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    (0..outer).flat_map(|i| (0..inner).map(move |l| (i, l))).map(|(i, l)| f(i, l)).collect()
}

/// # Safety
/// Element `i` of an array of this type is there.
unsafe fn get(dtype: cudaDataType_t, at: usize, i: usize) -> f32 {
    // SAFETY: by the contract above.
    unsafe {
        match dtype {
            sys::CUDA_R_16BF => (*(at as *const bf16).add(i)).to_f32(),
            sys::CUDA_R_16F => (*(at as *const f16).add(i)).to_f32(),
            _ => *(at as *const f32).add(i),
        }
    }
}

/// # Safety
/// As [`get`].
unsafe fn set(dtype: cudaDataType_t, at: usize, i: usize, v: f32) {
    // SAFETY: by the contract above.
    unsafe {
        match dtype {
            sys::CUDA_R_16BF => *(at as *mut bf16).add(i) = bf16::from_f32(v),
            sys::CUDA_R_16F => *(at as *mut f16).add(i) = f16::from_f32(v),
            _ => *(at as *mut f32).add(i) = v,
        }
    }
}
