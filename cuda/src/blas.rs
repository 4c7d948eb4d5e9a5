//! Matrix products by cublasLt: row-major ones, told as column-major ones of the transposes, with the library's proposals
//! kept by shape.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex};

use ferrotron_cuda_sys::{self as sys, CublasLt};
use ferrotron_device::ops::Gemm;
use ferrotron_device::{DType, Error, Result, Tensor};

use crate::memory::Workspace;
use crate::shared::{Omit, Shared, lock};
use crate::stream::Core;

/// What a proposal depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    m: usize,
    n: usize,
    k: usize,
    trans_a: bool,
    trans_b: bool,
    ab: DType,
    c: DType,
    epilogue: u32,
    /// Bytes of alignment of A, B and C.
    alignment: [u32; 3],
}

/// What follows a product.
#[derive(Clone, Copy)]
pub enum After<'a> {
    /// A bias is added, if there is one, of C's type.
    Bias(Option<&'a Tensor>),
    /// And GELU by tanh is applied to what it is now, which goes to this tensor.
    Gelu(Option<&'a Tensor>, &'a Tensor),
    /// It is multiplied by GELU's slope at this tensor.
    GeluSlope(&'a Tensor),
}

impl<'a> After<'a> {
    fn epilogue(self) -> u32 {
        match self {
            After::Bias(None) => sys::CUBLASLT_EPILOGUE_DEFAULT,
            After::Bias(Some(_)) => sys::CUBLASLT_EPILOGUE_BIAS,
            After::Gelu(None, _) => sys::CUBLASLT_EPILOGUE_GELU_AUX,
            After::Gelu(Some(_), _) => sys::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            After::GeluSlope(_) => sys::CUBLASLT_EPILOGUE_DGELU,
        }
    }

    /// The descriptor's pointers.
    fn pointers(self) -> impl Iterator<Item = (i32, &'a Tensor)> {
        let (bias, other) = match self {
            After::Bias(bias) => (bias, None),
            After::Gelu(bias, inner) => (bias, Some(inner)),
            After::GeluSlope(inner) => (None, Some(inner)),
        };
        let bias = bias.map(|t| (sys::CUBLASLT_MATMUL_DESC_BIAS_POINTER, t));
        bias.into_iter().chain(other.map(|t| (sys::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, t)))
    }
}

/// A product that is ready to run, or that the library has no algorithm for.
struct Plan {
    desc: usize,
    layouts: [usize; 3],
    algo: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

/// cublasLt of one device.
pub struct Blas {
    shared: Arc<Shared>,
    handle: usize,
    plans: Mutex<HashMap<Shape, Option<Plan>>>,
}

fn dtype(d: DType) -> sys::cudaDataType_t {
    match d {
        DType::BF16 => sys::CUDA_R_16BF,
        DType::F16 => sys::CUDA_R_16F,
        // the contract's check lets no other through
        _ => sys::CUDA_R_32F,
    }
}

/// A matrix's memory.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    pub at: u64,
    pub dtype: DType,
}

impl Matrix {
    /// A tensor's memory.
    pub fn of(t: &Tensor) -> Matrix {
        Matrix { at: t.ptr().0, dtype: t.dtype() }
    }

    /// Largest power of two, at most 256, that divides the address.
    fn alignment(self) -> u32 {
        1 << self.at.trailing_zeros().min(8)
    }
}

fn words(blas: &CublasLt, status: i32) -> String {
    let Some(get) = blas.cublasLtGetStatusString else { return format!("status {status}") };
    // SAFETY: gives a C string that lives as long as the library.
    let text = unsafe { CStr::from_ptr(get(status)) };
    format!("status {status} {}", text.to_string_lossy())
}

impl Blas {
    pub fn new(shared: Arc<Shared>) -> Result<Blas> {
        shared.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: an out-parameter; a context is current.
        let status = unsafe { (shared.cuda.blas.cublasLtCreate)(&mut handle) };
        if status != 0 {
            let what = format!("cublasLtCreate: {}", words(&shared.cuda.blas, status));
            return Err(Error::Device { device: shared.name.clone(), what });
        }
        Ok(Blas { shared, handle: handle as usize, plans: Mutex::default() })
    }

    /// `c = alpha op(a) op(b) + beta c`, and what follows; `Ok(false)`: the library has no algorithm for that.
    pub fn product(
        &self,
        core: &Core,
        g: Gemm,
        (m, n, k): (usize, usize, usize),
        a: Matrix,
        b: Matrix,
        after: After<'_>,
        c: Matrix,
    ) -> Result<bool> {
        let shape = Shape {
            m,
            n,
            k,
            trans_a: g.trans_a,
            trans_b: g.trans_b,
            ab: a.dtype,
            c: c.dtype,
            epilogue: after.epilogue(),
            alignment: [a, b, c].map(Matrix::alignment),
        };
        let mut plans = lock(&self.plans);
        let plan = match plans.entry(shape) {
            std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::hash_map::Entry::Vacant(e) => e.insert(self.plan(core, shape, after)?),
        };
        let Some(plan) = plan else { return Ok(false) };
        let lt = &self.shared.cuda.blas;
        for (attribute, t) in after.pointers() {
            self.set(core, plan.desc, attribute, t.ptr().0)?;
        }
        let mut bytes = plan.workspace;
        if self.shared.omits(Omit::Workspace) {
            bytes /= 2;
        }
        let workspace = lock(&core.workspace).at(&self.shared)? as *mut c_void;
        let stream = self.shared.stream_for(core, Omit::ProductStream);
        let at = |m: Matrix| m.at as *const c_void;
        core.note(format!("product {shape:?}"));
        let [first, second, out] = plan.layouts.map(|l| l as sys::cublasLtMatrixLayout_t);
        // SAFETY: layouts describe the tensors, whose memory lives as long as work on it is queued; alpha and beta are
        // read by the call; the workspace has as many bytes and is the stream's.
        let status = unsafe {
            (lt.cublasLtMatmul)(
                self.handle as sys::cublasLtHandle_t,
                plan.desc as sys::cublasLtMatmulDesc_t,
                (&raw const g.alpha).cast(),
                at(b),
                first,
                at(a),
                second,
                (&raw const g.beta).cast(),
                at(c),
                out,
                c.at as *mut c_void,
                out,
                &plan.algo,
                workspace,
                bytes,
                stream,
            )
        };
        self.check(core, "cublasLtMatmul", status)?;
        Ok(true)
    }

    fn check(&self, core: &Core, call: &str, status: i32) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        Err(core.refused(format!("{call}: {}", words(&self.shared.cuda.blas, status))))
    }

    fn set<T: Copy>(&self, core: &Core, desc: usize, attribute: i32, value: T) -> Result<()> {
        let set = self.shared.cuda.blas.cublasLtMatmulDescSetAttribute;
        let desc = desc as sys::cublasLtMatmulDesc_t;
        // SAFETY: a live description, a value of this size.
        let status = unsafe { set(desc, attribute, (&raw const value).cast(), size_of::<T>()) };
        self.check(core, "cublasLtMatmulDescSetAttribute", status)
    }

    /// Row-major `C[M,N] = op(A) op(B)` is column-major `C^T[N,M] = op(B)^T op(A)^T`, and a row-major matrix is its own
    /// transpose told as column-major: B comes first, and both keep their "transposed". The bias, one for each column of
    /// C, is then one for each row, which is what the library adds.
    fn plan(&self, core: &Core, s: Shape, after: After<'_>) -> Result<Option<Plan>> {
        let lt = &self.shared.cuda.blas;
        let mut desc = std::ptr::null_mut();
        // SAFETY: an out-parameter.
        let status = unsafe { (lt.cublasLtMatmulDescCreate)(&mut desc, sys::CUBLAS_COMPUTE_32F, sys::CUDA_R_32F) };
        self.check(core, "cublasLtMatmulDescCreate", status)?;
        let mut plan = Plan { desc: desc as usize, layouts: [0; 3], algo: Default::default(), workspace: 0 };
        let found = self.propose(core, s, after, &mut plan);
        match found {
            Ok(true) => Ok(Some(plan)),
            other => {
                self.destroy(&plan);
                other.map(|_| None)
            }
        }
    }

    /// Fills a plan; `Ok(false)`: there is no algorithm.
    fn propose(&self, core: &Core, s: Shape, after: After<'_>, plan: &mut Plan) -> Result<bool> {
        let lt = &self.shared.cuda.blas;
        let op = |trans| if trans { sys::CUBLAS_OP_T } else { sys::CUBLAS_OP_N };
        self.set(core, plan.desc, sys::CUBLASLT_MATMUL_DESC_TRANSA, op(s.trans_b))?;
        self.set(core, plan.desc, sys::CUBLASLT_MATMUL_DESC_TRANSB, op(s.trans_a))?;
        self.set(core, plan.desc, sys::CUBLASLT_MATMUL_DESC_EPILOGUE, s.epilogue)?;
        for (attribute, t) in after.pointers() {
            // of this call; a later one sets its own
            self.set(core, plan.desc, attribute, t.ptr().0)?;
            if attribute == sys::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER {
                self.set(core, plan.desc, sys::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.n as i64)?;
            }
        }
        // rows and columns as column-major has them
        let b = if s.trans_b { (s.k, s.n) } else { (s.n, s.k) };
        let a = if s.trans_a { (s.m, s.k) } else { (s.k, s.m) };
        for (i, (d, (rows, cols))) in [(s.ab, b), (s.ab, a), (s.c, (s.n, s.m))].into_iter().enumerate() {
            let mut layout = std::ptr::null_mut();
            let create = lt.cublasLtMatrixLayoutCreate;
            // SAFETY: an out-parameter.
            let status = unsafe { create(&mut layout, dtype(d), rows as u64, cols as u64, rows as i64) };
            self.check(core, "cublasLtMatrixLayoutCreate", status)?;
            plan.layouts[i] = layout as usize;
        }
        let mut preference = std::ptr::null_mut();
        // SAFETY: an out-parameter.
        let status = unsafe { (lt.cublasLtMatmulPreferenceCreate)(&mut preference) };
        self.check(core, "cublasLtMatmulPreferenceCreate", status)?;
        let found = self.ask(core, s, plan, preference);
        // SAFETY: made above, and this is its last use.
        unsafe { (lt.cublasLtMatmulPreferenceDestroy)(preference) };
        found
    }

    fn ask(&self, core: &Core, s: Shape, plan: &mut Plan, preference: sys::cublasLtMatmulPreference_t) -> Result<bool> {
        let lt = &self.shared.cuda.blas;
        let prefer = |attribute: i32, value: u64, bytes: usize| {
            // SAFETY: a live preference; the value's first bytes are the number on little-endian machines, which all hosts
            // of these GPUs are.
            let status = unsafe {
                (lt.cublasLtMatmulPreferenceSetAttribute)(preference, attribute, (&raw const value).cast(), bytes)
            };
            self.check(core, "cublasLtMatmulPreferenceSetAttribute", status)
        };
        prefer(sys::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Workspace::BYTES as u64, 8)?;
        let scheme = u64::from(sys::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
        prefer(sys::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, scheme, 4)?;
        if !self.shared.omits(Omit::Alignment) {
            let [a, b, c] = s.alignment.map(u64::from);
            prefer(sys::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b, 4)?;
            prefer(sys::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a, 4)?;
            prefer(sys::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c, 4)?;
            prefer(sys::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c, 4)?;
        }
        let [first, second, out] = plan.layouts.map(|l| l as sys::cublasLtMatrixLayout_t);
        let (mut best, mut count) = (sys::cublasLtMatmulHeuristicResult_t::default(), 0);
        // SAFETY: live objects, room for one result.
        let status = unsafe {
            (lt.cublasLtMatmulAlgoGetHeuristic)(
                self.handle as sys::cublasLtHandle_t,
                plan.desc as sys::cublasLtMatmulDesc_t,
                first,
                second,
                out,
                out,
                preference,
                1,
                &mut best,
                &mut count,
            )
        };
        const NOT_SUPPORTED: i32 = 15;
        if status == NOT_SUPPORTED || (status == 0 && (count == 0 || best.state != 0)) {
            return Ok(false);
        }
        self.check(core, "cublasLtMatmulAlgoGetHeuristic", status)?;
        (plan.algo, plan.workspace) = (best.algo, best.workspaceSize);
        Ok(true)
    }

    fn destroy(&self, plan: &Plan) {
        let lt = &self.shared.cuda.blas;
        for layout in plan.layouts.into_iter().filter(|&l| l != 0) {
            // SAFETY: ours, and this is its last use.
            unsafe { (lt.cublasLtMatrixLayoutDestroy)(layout as sys::cublasLtMatrixLayout_t) };
        }
        // SAFETY: as above.
        unsafe { (lt.cublasLtMatmulDescDestroy)(plan.desc as sys::cublasLtMatmulDesc_t) };
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let _ = self.shared.enter();
        let plans = std::mem::take(&mut *lock(&self.plans));
        plans.values().flatten().for_each(|p| self.destroy(p));
        // SAFETY: ours; the streams that used it have been waited for.
        unsafe { (self.shared.cuda.blas.cublasLtDestroy)(self.handle as sys::cublasLtHandle_t) };
    }
}
