//! A Prometheus endpoint: the newest numbers of the run as text at `http://host:port/metrics` (`--prometheus-port`).
//!
//! One thread answers one connection at a time, reads at most 4 KiB of request, and waits for a client two seconds at most.
//! Dropping the endpoint closes the port and joins the thread.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::step::StepMetrics;

/// A port that cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics on port {port}: {source}; choose another --prometheus-port, or 0 for a free one")]
pub struct EndpointError {
    /// The port.
    pub port: u16,
    /// The operating system's answer.
    pub source: io::Error,
}

/// The endpoint. It serves nothing but the page it was last given.
#[derive(Debug)]
pub struct Endpoint {
    page: Arc<Mutex<String>>,
    stop: Arc<AtomicBool>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
    skipped: u64,
}

impl Endpoint {
    /// Listens on all addresses of `port`; 0 takes a free one, see [`Endpoint::address`].
    ///
    /// # Errors
    /// The port is taken or forbidden.
    pub fn start(port: u16) -> Result<Endpoint, EndpointError> {
        let fail = |source| EndpointError { port, source };
        let listener = TcpListener::bind(("0.0.0.0", port)).map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        let page = Arc::new(Mutex::new(String::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stopped) = (page.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("prometheus".to_string())
            .spawn(move || {
                for stream in listener.incoming() {
                    if stopped.load(Ordering::Acquire) {
                        return;
                    }
                    // A client that fails is its own trouble; the run goes on.
                    let Ok(stream) = stream else { continue };
                    let page = shared.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    let _ = answer(stream, &page);
                }
            })
            .map_err(fail)?;
        Ok(Endpoint { page, stop, address, thread: Some(thread), skipped: 0 })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Publishes the numbers of an iteration.
    pub fn step(&mut self, s: &StepMetrics) {
        self.skipped += u64::from(s.skipped);
        let page = page(s, self.skipped);
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = page;
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The thread waits in accept: a connection of our own wakes it.
        let local = SocketAddr::from(([127, 0, 0, 1], self.address.port()));
        let woken = TcpStream::connect_timeout(&local, Duration::from_secs(1)).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: TcpStream, page: &str) -> io::Result<()> {
    let limit = Some(Duration::from_secs(2));
    stream.set_read_timeout(limit)?;
    stream.set_write_timeout(limit)?;
    let mut request = [0; 4096];
    let mut length = 0;
    while length < request.len() && !request[..length].windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut request[length..])? {
            0 => break,
            n => length += n,
        }
    }
    let line = String::from_utf8_lossy(&request[..length]);
    let mut words = line.split_ascii_whitespace();
    let (status, body) = match (words.next(), words.next()) {
        (Some("GET"), Some(path)) if path.split('?').next() == Some("/metrics") => ("200 OK", page),
        (Some("GET"), Some(_)) => ("404 Not Found", "the metrics are at /metrics\n"),
        _ => ("405 Method Not Allowed", "only GET /metrics is served\n"),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// The text exposition format, version 0.0.4.
fn page(s: &StepMetrics, skipped: u64) -> String {
    let mut out = String::new();
    let mut put = |name: &str, kind: &str, help: &str, value: f64| {
        let _ = write!(
            out,
            "# HELP ferrotron_{name} {help}\n# TYPE ferrotron_{name} {kind}\nferrotron_{name} {}\n",
            number(value)
        );
    };
    put("iteration", "counter", "Iterations done.", s.iteration as f64);
    put("train_iterations", "gauge", "Iterations of the whole run.", s.train_iters as f64);
    put("consumed_samples", "counter", "Training samples consumed.", s.consumed_samples as f64);
    put("skipped_iterations", "counter", "Iterations of this process whose update was skipped.", skipped as f64);
    put("batch_size", "gauge", "Samples of an iteration.", s.batch_size as f64);
    put("learning_rate", "gauge", "Learning rate of the next iteration.", s.learning_rate);
    put("loss_scale", "gauge", "Loss scale.", s.loss_scale);
    put("iteration_seconds", "gauge", "Wall time of the last iteration.", s.seconds);
    put("tokens_per_second", "gauge", "Tokens a second over all devices.", s.tokens_per_second());
    let optional = [
        ("grad_norm", "Norm of the gradients before clipping.", s.grad_norm),
        ("params_norm", "Norm of the parameters.", s.params_norm),
        ("tflops_per_device", "TFLOP/s of one device, recomputation not counted.", s.tflops_per_device),
        ("mfu_ratio", "Share of the device's peak.", s.mfu),
        ("memory_allocated_bytes", "Bytes in use on the device.", s.memory_allocated.map(|b| b as f64)),
        ("memory_peak_bytes", "Most bytes in use so far.", s.memory_peak.map(|b| b as f64)),
    ];
    for (name, help, value) in optional {
        if let Some(value) = value {
            put(name, "gauge", help, value);
        }
    }
    let _ = write!(out, "# HELP ferrotron_loss Loss of the last iteration.\n# TYPE ferrotron_loss gauge\n");
    for (name, loss) in &s.losses {
        let label = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = writeln!(out, "ferrotron_loss{{name=\"{label}\"}} {}", number(*loss));
    }
    out
}

fn number(x: f64) -> String {
    match x {
        x if x.is_nan() => "NaN".to_string(),
        x if x.is_infinite() => if x > 0.0 { "+Inf" } else { "-Inf" }.to_string(),
        x => format!("{x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", address.port())).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn serves_the_newest_numbers_and_lets_go_of_the_port() {
        let mut endpoint = Endpoint::start(0).unwrap();
        let address = endpoint.address();
        let mut s = StepMetrics { iteration: 7, skipped: true, grad_norm: Some(1.5), ..StepMetrics::default() };
        s.losses = vec![("lm \"loss\"".into(), f64::NAN)];
        endpoint.step(&s);
        s.iteration = 8;
        endpoint.step(&s);
        let text = get(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200 OK") && head.contains(&format!("Content-Length: {}", body.len())),
            "{head}"
        );
        for line in [
            "# TYPE ferrotron_iteration counter\nferrotron_iteration 8\n",
            "ferrotron_skipped_iterations 2\n",
            "ferrotron_grad_norm 1.5\n",
            "ferrotron_loss{name=\"lm \\\"loss\\\"\"} NaN\n",
        ] {
            assert!(body.contains(line), "{line} is not in {body}");
        }
        assert!(!body.contains("mfu"), "what is not measured is not shown");
        assert!(get(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(get(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        let taken = Endpoint::start(address.port()).unwrap_err();
        assert!(taken.to_string().contains(&format!("port {}", address.port())));
        drop(endpoint);
        drop(Endpoint::start(address.port()).unwrap());
    }

    #[test]
    fn a_flood_of_header_is_cut() {
        let endpoint = Endpoint::start(0).unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", endpoint.address().port())).unwrap();
        let _ = stream.write_all(&[b'x'; 4096]);
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 405"), "{text}");
    }
}
