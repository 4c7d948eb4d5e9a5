//! Graphs: what streams do is collected, and run as often as it is launched.
//!
//! A capture is a list of steps in host order, each of a lane: a stream that takes part. A launch puts them on hidden streams,
//! one a lane, between two marks of the stream that it is launched on; so work of a graph is as late, and as closely watched
//! for races, as any other. The rules are the driver's for relaxed captures; what breaks one spoils the capture, as there.

use std::ffi::c_int;
use std::sync::Arc;

use ferrotron_cuda_sys::{self as sys, CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo, CUresult, CUstream, code};
use ferrotron_mock::{Access, Engine, Fault, Mark, StreamId, Task};

use crate::driver::{calls, ended, put};
use crate::world::{Answer, Object, World, lock};

/// Two captures meet.
const STREAM_CAPTURE_MERGE: CUresult = 902;

/// What a task does, as often as it is asked to.
pub type Run = Arc<dyn Fn() -> Result<(), Fault> + Send + Sync>;

/// Work for a stream, which may run more than once.
#[derive(Clone)]
pub struct Work {
    /// Name for reports and faults.
    pub name: Arc<str>,
    /// All memory that it touches.
    pub accesses: Vec<Access>,
    /// The work.
    pub run: Run,
}

/// A part of a capture.
#[derive(Clone)]
enum Step {
    Work(usize, Work),
    /// A lane's mark of this number.
    Record(usize, usize),
    /// A lane waits for a mark.
    Wait(usize, usize),
    /// A lane waits for an event of outside, by handle.
    Outer(usize, usize),
}

/// Steps known to be before, by lane.
type Clock = Vec<usize>;

/// A stream that takes part.
struct Lane {
    stream: StreamId,
    clock: Clock,
}

/// A capture that is on.
pub struct Capture {
    device: usize,
    lanes: Vec<Lane>,
    steps: Vec<Step>,
    marks: usize,
    spoilt: bool,
}

/// A mark of a capture: which, its number, and what is before it.
#[derive(Clone)]
pub struct Collected {
    capture: usize,
    number: usize,
    clock: Clock,
}

/// What a capture came to.
pub struct Graph {
    lanes: usize,
    steps: Vec<Step>,
}

/// A graph that can be launched, and its hidden streams.
#[derive(Clone)]
pub struct Exec {
    device: usize,
    graph: Arc<Graph>,
    lanes: Vec<StreamId>,
}

impl Capture {
    /// One more step of a lane that others may depend on.
    fn advance(&mut self, lane: usize) {
        let clock = &mut self.lanes[lane].clock;
        clock.resize(clock.len().max(lane + 1), 0);
        clock[lane] += 1;
    }

    fn learn(&mut self, lane: usize, from: &Clock) {
        let clock = &mut self.lanes[lane].clock;
        clock.resize(clock.len().max(from.len()), 0);
        clock.iter_mut().zip(from).for_each(|(c, f)| *c = (*c).max(*f));
    }
}

impl Graph {
    /// What must be the same for one graph to take another's parameters.
    fn shape(&self) -> Vec<(usize, usize, &str)> {
        fn part(step: &Step) -> (usize, usize, &str) {
            match step {
                Step::Work(lane, work) => (*lane, 0, &work.name),
                Step::Record(lane, mark) => (*lane, *mark, "record"),
                Step::Wait(lane, mark) => (*lane, *mark, "wait"),
                Step::Outer(lane, _) => (*lane, 0, "outer"),
            }
        }
        self.steps.iter().map(part).collect()
    }
}

impl World {
    /// The capture that a stream of a device takes part in, and its lane.
    fn lane_of(&self, captures: &[Option<Capture>], device: usize, id: StreamId) -> Option<(usize, usize)> {
        captures.iter().enumerate().find_map(|(n, c)| {
            let c = c.as_ref().filter(|c| c.device == device)?;
            Some((n, c.lanes.iter().position(|l| l.stream == id)?))
        })
    }

    fn device_of(&self, engine: &Engine) -> usize {
        self.devices.iter().position(|d| std::ptr::eq(d, engine)).unwrap_or(0)
    }

    /// Work for a stream: for its queue, or, when it is captured, for the graph.
    pub fn put(&self, (engine, id): (&Engine, StreamId), work: Work) -> Answer<()> {
        let mut captures = lock(&self.captures);
        if let Some((n, lane)) = self.lane_of(&captures, self.device_of(engine), id)
            && let Some(c) = &mut captures[n]
        {
            c.advance(lane);
            c.steps.push(Step::Work(lane, work));
            return Ok(());
        }
        drop(captures);
        self.start((engine, id), work)
    }

    /// Refuses a question about a captured stream, which spoils the capture.
    pub fn not_captured(&self, (engine, id): (&Engine, StreamId)) -> Answer<()> {
        let mut captures = lock(&self.captures);
        match self.lane_of(&captures, self.device_of(engine), id) {
            Some((n, _)) => {
                captures[n].iter_mut().for_each(|c| c.spoilt = true);
                engine.broke("the host asks for or waits for a stream that is captured");
                Err(code::STREAM_CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// True for a stream that is captured.
    pub fn is_captured(&self, (engine, id): (&Engine, StreamId)) -> bool {
        self.lane_of(&lock(&self.captures), self.device_of(engine), id).is_some()
    }

    /// Refuses a question about an event of a capture, which spoils that.
    pub fn ask_collected(&self, engine: &Engine, mark: &Collected) -> CUresult {
        if let Some(Some(c)) = lock(&self.captures).get_mut(mark.capture) {
            c.spoilt = true;
        }
        engine.broke("the host asks for an event of a capture");
        code::CAPTURED_EVENT
    }

    /// A mark in a stream that is captured; `None` for any other.
    pub fn mark(&self, (engine, id): (&Engine, StreamId)) -> Option<Collected> {
        let mut captures = lock(&self.captures);
        let (n, lane) = self.lane_of(&captures, self.device_of(engine), id)?;
        let c = captures[n].as_mut()?;
        let number = c.marks;
        c.marks += 1;
        c.steps.push(Step::Record(lane, number));
        Some(Collected { capture: n, number, clock: c.lanes[lane].clock.clone() })
    }

    /// A stream waits for a mark of a capture: it takes part in it from here on.
    pub fn wait_collected(&self, (engine, id): (&Engine, StreamId), mark: &Collected, flags: u32) -> Answer<()> {
        let device = self.device_of(engine);
        let mut captures = lock(&self.captures);
        let at = self.lane_of(&captures, device, id);
        let Some(Some(c)) = captures.get_mut(mark.capture) else {
            engine.broke("a stream waits for an event of a capture that has ended");
            return Err(code::CAPTURED_EVENT);
        };
        if flags != 0 || c.device != device {
            c.spoilt = true;
            return Err(code::INVALID_VALUE);
        }
        let lane = match at {
            Some((n, lane)) if n == mark.capture => lane,
            Some(_) => return Err(STREAM_CAPTURE_MERGE),
            None => {
                c.lanes.push(Lane { stream: id, clock: vec![] });
                c.lanes.len() - 1
            }
        };
        c.learn(lane, &mark.clock);
        c.steps.push(Step::Wait(lane, mark.number));
        Ok(())
    }

    /// A stream waits for an event of no capture. `Ok(false)`: the stream is not captured either.
    pub fn wait_outer(&self, (engine, id): (&Engine, StreamId), event: usize, flags: u32) -> Answer<bool> {
        let mut captures = lock(&self.captures);
        let at = self.lane_of(&captures, self.device_of(engine), id);
        match (at, flags) {
            (None, 0) => Ok(false),
            (Some((n, lane)), sys::CU_EVENT_WAIT_EXTERNAL) => {
                if let Some(c) = &mut captures[n] {
                    c.advance(lane);
                    c.steps.push(Step::Outer(lane, event));
                }
                Ok(true)
            }
            (Some((n, _)), 0) => {
                captures[n].iter_mut().for_each(|c| c.spoilt = true);
                engine.broke("a captured stream waits for an event of outside as if it were of the capture");
                Err(code::STREAM_CAPTURE_ISOLATION)
            }
            _ => Err(code::INVALID_VALUE),
        }
    }

    /// Puts the steps of a graph on its hidden streams.
    fn launch(&self, exec: &Exec, (engine, id): (&Engine, StreamId)) -> Answer<()> {
        let begun = ended(engine.record(id))?;
        for &lane in &exec.lanes {
            ended(engine.wait(lane, &begun))?;
        }
        let mut marks: Vec<Option<Mark>> = vec![];
        for step in &exec.graph.steps {
            match step {
                Step::Work(lane, work) => self.start((engine, exec.lanes[*lane]), work.clone())?,
                Step::Record(lane, number) => {
                    marks.resize(marks.len().max(number + 1), None);
                    marks[*number] = Some(ended(engine.record(exec.lanes[*lane]))?);
                }
                Step::Wait(lane, number) => {
                    let mark = marks.get(*number).and_then(Option::as_ref).ok_or(code::INVALID_VALUE)?;
                    ended(engine.wait(exec.lanes[*lane], mark))?;
                }
                Step::Outer(lane, event) => match self.get(*event)? {
                    Object::Event { mark: Some(mark), collected: None } => {
                        ended(engine.wait(exec.lanes[*lane], &mark))?;
                    }
                    _ => return Err(code::INVALID_VALUE),
                },
            }
        }
        for &lane in &exec.lanes {
            let done = ended(engine.record(lane))?;
            ended(engine.wait(id, &done))?;
        }
        // the stream is busy until all of it is done
        ended(engine.enqueue(id, Task::new("end of a graph", vec![], || Ok(()))))
    }

    fn exec(&self, exec: CUgraphExec) -> Answer<Exec> {
        match self.get(exec as usize)? {
            Object::Exec(e) => Ok(e),
            _ => Err(code::INVALID_HANDLE),
        }
    }

    fn graph(&self, graph: CUgraph) -> Answer<Arc<Graph>> {
        match self.get(graph as usize)? {
            Object::Graph(g) => Ok(g),
            _ => Err(code::INVALID_HANDLE),
        }
    }
}

calls! {
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_int) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        if mode != sys::CU_STREAM_CAPTURE_MODE_RELAXED {
            return Err(code::INVALID_VALUE); // the mock plays no other
        }
        let device = w.device_of(engine);
        let mut captures = lock(&w.captures);
        if w.lane_of(&captures, device, id).is_some() {
            return Err(code::INVALID_VALUE);
        }
        let lanes = vec![Lane { stream: id, clock: vec![] }];
        captures.push(Some(Capture { device, lanes, steps: vec![], marks: 0, spoilt: false }));
        Ok(())
    }
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) |w| {
        let (engine, id) = w.stream(stream as usize)?;
        let mut captures = lock(&w.captures);
        let (n, lane) = w.lane_of(&captures, w.device_of(engine), id).ok_or(code::INVALID_VALUE)?;
        if lane != 0 {
            return Err(code::STREAM_CAPTURE_UNMATCHED);
        }
        let Some(c) = captures[n].take() else { return Err(code::INVALID_VALUE) };
        let known = |lane: usize| c.lanes[0].clock.get(lane).copied().unwrap_or(0);
        let joined = c.lanes.iter().enumerate().all(|(i, l)| known(i) >= l.clock.get(i).copied().unwrap_or(0));
        if c.spoilt {
            return Err(code::STREAM_CAPTURE_INVALIDATED);
        }
        if !joined {
            return Err(code::STREAM_CAPTURE_UNJOINED);
        }
        let made = Graph { lanes: c.lanes.len(), steps: c.steps };
        // SAFETY: out-parameter.
        unsafe { put(graph, w.add(Object::Graph(Arc::new(made))) as CUgraph) }
    }
    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64) |w| {
        let (device, graph) = (w.current()?, w.graph(graph)?);
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        let lanes: Result<Vec<StreamId>, _> = (0..graph.lanes).map(|_| w.devices[device].stream()).collect();
        let lanes = lanes.map_err(|_| code::OUT_OF_MEMORY)?;
        // SAFETY: out-parameter.
        unsafe { put(exec, w.add(Object::Exec(Exec { device, graph, lanes })) as CUgraphExec) }
    }
    fn cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, result: *mut CUgraphExecUpdateResultInfo) |w| {
        let (mut known, graph) = (w.exec(exec)?, w.graph(graph)?);
        let same = known.graph.lanes == graph.lanes && known.graph.shape() == graph.shape();
        let null = std::ptr::null_mut();
        // SAFETY: out-parameter.
        unsafe { put(result, CUgraphExecUpdateResultInfo { result: (!same).into(), errorNode: null, errorFromNode: null }) }?;
        if !same {
            return Err(code::GRAPH_EXEC_UPDATE_FAILURE);
        }
        known.graph = graph;
        lock(&w.objects).insert(exec as usize, Object::Exec(known));
        Ok(())
    }
    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) |w| {
        let (at, exec) = (w.stream(stream as usize)?, w.exec(exec)?);
        if w.is_captured(at) || exec.device != w.device_of(at.0) {
            return Err(code::INVALID_VALUE);
        }
        w.launch(&exec, at)
    }
    fn cuGraphExecDestroy(exec: CUgraphExec) |w| {
        let Exec { device, lanes, .. } = w.exec(exec)?;
        w.remove(exec as usize)?;
        lanes.into_iter().try_for_each(|lane| ended(w.devices[device].end_stream(lane, false)))
    }
    fn cuGraphDestroy(graph: CUgraph) |w| {
        w.graph(graph)?;
        w.remove(graph as usize).map(drop)
    }
}
