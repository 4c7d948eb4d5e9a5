//! The work of a step as one graph (CUDA graphs): collected while the host makes its calls, launched as a whole.
//!
//! Every step is collected anew and its parameters are put into the graph that is there (`cuGraphExecUpdate`): learning
//! rates, dropout keys and addresses are arguments of kernels, so nothing of a graph may be kept from one step for the next
//! but its shape. A step of another shape (more micro-batches) makes a new graph.
//!
//! What a capture asks for, and where it is met:
//!
//! | the driver | here |
//! |---|---|
//! | a stream takes part when it waits for one that does | a stream's first use brings it in ([`Graphs::join`]) |
//! | what it did before is not before the graph | an outer event that the graph waits for |
//! | every stream must be waited for at the end | `launch` |
//! | what it does after is not after the graph | each waits for an event behind the graph |
//! | events of a capture are good for nothing outside | recorded again, behind the graph |
//! | no stream or event of a capture may be queried | they are not done, and the driver is not asked |

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Weak};

use ferrotron_cuda_sys::{self as sys, CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo, CUstream, code};
use ferrotron_device::{Error, Result};

use crate::event::{CudaEvent, Mark};
use crate::shared::{Omit, Shared, lock};
use crate::stream::Core;

/// A device's graphs.
#[derive(Default)]
pub struct Graphs {
    /// Work is being collected.
    on: AtomicBool,
    /// Held while a capture begins, and by who asks the driver about a stream: asking would spoil a capture.
    asking: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    collecting: Option<Collecting>,
    made: Option<Made>,
}

/// A capture.
struct Collecting {
    /// The capture's first mark, which brings streams in.
    start: CudaEvent,
    /// Streams that take part, the home stream first.
    streams: Vec<usize>,
    /// Marks set in the capture.
    marks: Vec<Weak<Mark>>,
    /// Events of outside that the graph waits for.
    outer: Vec<CudaEvent>,
}

/// What was launched last. Libraries tie memory to the collected graph: it lives as long as its launch may run.
struct Made {
    graph: usize,
    exec: usize,
    _outer: Vec<CudaEvent>,
}

impl Graphs {
    /// True while work is collected.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Keeps a capture from beginning; `None` while there is one. For who asks the driver about a stream.
    pub fn kept_off(&self) -> Option<MutexGuard<'_, ()>> {
        let asking = lock(&self.asking);
        (!self.is_on()).then_some(asking)
    }

    /// Begins a capture on the home stream.
    pub fn collect(&self, home: &Core) -> Result<()> {
        home.begin()?;
        if self.is_on() {
            return Err(home.shared.broken("a step is collected already"));
        }
        let begin = home.shared.cuda.driver.cuStreamBeginCapture_v2;
        let asking = lock(&self.asking);
        // SAFETY: the stream lives.
        let status = unsafe { begin(home.handle(), sys::CU_STREAM_CAPTURE_MODE_RELAXED) };
        self.on.store(status == code::SUCCESS, Ordering::Release);
        drop(asking);
        home.check("cuStreamBeginCapture", status)?;
        let streams = vec![home.handle() as usize];
        let start = home.mark(true)?;
        lock(&self.state).collecting = Some(Collecting { start, streams, marks: vec![], outer: vec![] });
        Ok(())
    }

    /// A stream is used: while work is collected it takes part.
    pub fn join(&self, core: &Core) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        let mut state = lock(&self.state);
        let Some(c) = &mut state.collecting else { return Ok(()) };
        if c.streams.contains(&(core.handle() as usize)) {
            return Ok(());
        }
        let before = core.mark(false)?;
        core.wait_for(&c.start, 0)?;
        if !core.shared.omits(Omit::GraphBefore) {
            core.wait_for(&before, sys::CU_EVENT_WAIT_EXTERNAL)?;
        }
        c.outer.push(before);
        c.streams.push(core.handle() as usize);
        Ok(())
    }

    /// A mark was set; while work is collected, in the capture.
    pub fn marked(&self, mark: &CudaEvent) {
        if mark.is_collected()
            && let Some(c) = &mut lock(&self.state).collecting
        {
            c.marks.push(mark.downgrade());
        }
    }

    /// True for an event of outside while work is collected. The graph will wait for it: it lives until it has.
    pub fn waits_for(&self, e: &CudaEvent) -> bool {
        if !self.is_on() || e.is_collected() {
            return false;
        }
        if let Some(c) = &mut lock(&self.state).collecting {
            c.outer.push(e.clone());
        }
        true
    }

    /// Ends the capture and launches it.
    pub fn launch(&self, home: &Core) -> Result<()> {
        home.begin()?;
        let taken = lock(&self.state).collecting.take();
        let Some(c) = taken else { return Err(home.shared.broken("no step is collected")) };
        let graph = self.end(home, &c)?;
        let last = lock(&self.state).made.take();
        let exec = executable(home, graph, last).inspect_err(|_| destroy(&home.shared, graph))?;
        lock(&self.state).made = Some(Made { graph, exec, _outer: c.outer });

        let begun = home.mark(false)?;
        home.note("the step as a graph".into());
        // SAFETY: made of this capture; the stream lives.
        let status = unsafe { (home.shared.cuda.driver.cuGraphLaunch)(exec as CUgraphExec, home.handle()) };
        home.check("cuGraphLaunch", status)?;
        let after = home.mark(false)?;
        if !home.shared.omits(Omit::GraphAfter) {
            for &stream in &c.streams[1..] {
                home.wait_on(stream as CUstream, &after, 0)?;
            }
        }
        for mark in c.marks.iter().filter_map(Weak::upgrade) {
            mark.launched(home, &begun)?;
        }
        Ok(())
    }

    /// Ends a capture: all streams come together, and the graph is taken.
    fn end(&self, home: &Core, c: &Collecting) -> Result<usize> {
        let driver = &home.shared.cuda.driver;
        let joined = || -> Result<()> {
            for &stream in &c.streams[1..] {
                let last = home.mark_on(stream as CUstream, true)?;
                home.wait_for(&last, 0)?;
            }
            Ok(())
        };
        let joined = joined();
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: an out-parameter; the stream began the capture, which must end whatever happened in it.
        let status = unsafe { (driver.cuStreamEndCapture)(home.handle(), &mut graph) };
        self.on.store(false, Ordering::Release);
        if (joined.is_err() || status != code::SUCCESS) && !graph.is_null() {
            destroy(&home.shared, graph as usize);
        }
        joined?;
        home.check("cuStreamEndCapture", status)?;
        Ok(graph as usize)
    }

    /// Ends a capture whose work is not wanted.
    pub fn discard(&self, home: &Core) {
        let taken = lock(&self.state).collecting.take();
        let Some(c) = taken else { return };
        let _ = home.shared.enter();
        // what went wrong is told already
        if let Ok(graph) = self.end(home, &c) {
            destroy(&home.shared, graph);
        }
        c.marks.iter().filter_map(Weak::upgrade).for_each(|m| m.given_up());
    }

    /// Gives back what was launched last. No stream works on it any more.
    pub fn free(&self, shared: &Shared) {
        let State { made, .. } = std::mem::take(&mut *lock(&self.state));
        if let Some(made) = made {
            made.free(shared);
        }
    }
}

impl Made {
    fn free(self, shared: &Shared) {
        // SAFETY: ours, and this is its last use; a launch that still runs keeps what it needs.
        unsafe { (shared.cuda.driver.cuGraphExecDestroy)(self.exec as CUgraphExec) };
        destroy(shared, self.graph);
    }
}

/// What launches a collected graph: the last one with this one's parameters, or where their shapes differ a new one.
fn executable(home: &Core, graph: usize, last: Option<Made>) -> Result<usize> {
    let driver = &home.shared.cuda.driver;
    if let Some(last) = last {
        let null = std::ptr::null_mut();
        let mut info = CUgraphExecUpdateResultInfo { result: 0, errorNode: null, errorFromNode: null };
        // SAFETY: both are ours; an out-parameter.
        let status = unsafe { (driver.cuGraphExecUpdate_v2)(last.exec as CUgraphExec, graph as CUgraph, &mut info) };
        if status == code::SUCCESS {
            destroy(&home.shared, last.graph);
            return Ok(last.exec);
        }
        last.free(&home.shared);
        if status != code::GRAPH_EXEC_UPDATE_FAILURE {
            home.check("cuGraphExecUpdate", status)?;
        }
    }
    let mut exec: CUgraphExec = std::ptr::null_mut();
    // SAFETY: an out-parameter and a graph of ours.
    let status = unsafe { (driver.cuGraphInstantiateWithFlags)(&mut exec, graph as CUgraph, 0) };
    home.check("cuGraphInstantiate", status)?;
    Ok(exec as usize)
}

fn destroy(shared: &Shared, graph: usize) {
    // SAFETY: ours, and this is its last use.
    unsafe { (shared.cuda.driver.cuGraphDestroy)(graph as *mut c_void) };
}

impl Shared {
    /// A rule of graphs was broken.
    pub fn broken(&self, what: &str) -> Error {
        let what = format!("{what}: run without --enable-cuda-graph and --cuda-graph-impl, and please report it");
        Error::Device { device: self.name.clone(), what }
    }
}
