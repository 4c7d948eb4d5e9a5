//! The page around the charts.

use std::fmt::Write as _;

use super::chart::{Line, chart, escape, label};
use super::{Report, RunState, Series};
use crate::console::duration;
use crate::timestamp::Timestamp;

const STYLE: &str = "\
:root{--bg:#fff;--fg:#1c2330;--dim:#68707d;--grid:#e4e7ec;--a:#1f6feb;--b:#d9480f;--card:#f7f8fa}\
@media(prefers-color-scheme:dark){:root{--bg:#0f141b;--fg:#e2e6ec;--dim:#8b95a3;--grid:#263041;--a:#58a6ff;--b:#ff9d5c;--card:#171e28}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:1240px;padding:24px;background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif}\
h1{font-size:22px;margin:0 0 4px}small,.dim{color:var(--dim)}.bad{color:var(--b);font-weight:600}\
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px;margin:20px 0}\
.tiles div{background:var(--card);border-radius:8px;padding:10px 14px}.tiles b{display:block;font-size:19px;font-weight:600}\
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(520px,100%),1fr));gap:16px}\
figure{margin:0;background:var(--card);border-radius:8px;padding:12px}figcaption{font-weight:600;margin-bottom:6px}\
svg{width:100%;height:auto;display:block}svg text{fill:var(--dim);font-size:11px}.grid{stroke:var(--grid)}\
path{fill:none;stroke-width:1.6}path.a{stroke:var(--a)}path.b{stroke:var(--b)}circle.a{fill:var(--a)}circle.b{fill:var(--b)}\
.legend{margin:4px 0 0;font-size:13px}.legend .a{color:var(--a)}.legend .b{color:var(--b)}\
table{border-collapse:collapse;width:100%;font-size:13px}td{padding:2px 10px 2px 0;border-bottom:1px solid var(--grid);vertical-align:top;overflow-wrap:anywhere}\
td:first-child{font-family:ui-monospace,monospace;white-space:nowrap}details{margin:24px 0}summary{cursor:pointer;font-weight:600}";

pub(super) fn page(r: &Report, state: &RunState, now: Timestamp) -> String {
    let training = *state == RunState::Training;
    let refresh = if training { "<meta http-equiv=\"refresh\" content=\"10\">" } else { "" };
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">{refresh}\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>{}</title><style>{STYLE}</style></head><body>\n",
        escape(&r.title)
    );
    let (class, words) = match state {
        RunState::Training => ("dim", "training; this page reloads itself".to_string()),
        RunState::Finished => ("dim", "finished".to_string()),
        RunState::Failed(why) => ("bad", format!("failed: {why}")),
    };
    let time = now.to_string();
    let _ = writeln!(
        out,
        "<h1>{}</h1><p><span class=\"{class}\">{}</span> <span class=\"dim\">· written {} UTC</span></p>",
        escape(&r.title),
        escape(&words),
        &time[..19]
    );
    out.push_str(&tiles(r, training));
    out.push_str("<div class=\"charts\">\n");
    for (name, train, valid) in &r.losses {
        out.push_str(&chart(
            name,
            "over iterations",
            &[line("training", "a", train, false), line("validation", "b", valid, true)],
        ));
    }
    for (title, unit, series) in [
        ("learning rate", "", &r.learning_rate),
        ("gradient norm", "before clipping", &r.grad_norm),
        ("throughput", "tokens/s, all devices", &r.tokens_per_second),
        ("throughput", "TFLOP/s of one device", &r.tflops),
        ("memory", "GiB in use", &r.memory),
    ] {
        out.push_str(&chart(title, unit, &[line(title, "a", series, false)]));
    }
    out.push_str("</div>\n");
    if !r.configuration.is_empty() {
        out.push_str("<details open><summary>Configuration</summary><table>\n");
        for (name, value) in &r.configuration {
            let _ = writeln!(out, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(value));
        }
        out.push_str("</table></details>\n");
    }
    out.push_str("</body></html>\n");
    out
}

fn line(name: &str, class: &'static str, series: &Series, dots: bool) -> Line {
    Line { name: name.to_string(), class, points: series.points(), dots }
}

fn tiles(r: &Report, training: bool) -> String {
    let s = &r.latest;
    if s.iteration == 0 {
        return String::new();
    }
    let mut tiles = vec![("iteration".to_string(), format!("{} / {}", s.iteration, s.train_iters))];
    tiles.extend(s.losses.iter().map(|(name, loss)| (name.clone(), label(*loss))));
    tiles.push(("learning rate".into(), label(s.learning_rate)));
    tiles.extend(s.grad_norm.map(|norm| ("gradient norm".to_string(), label(norm))));
    tiles.push(("tokens/s".into(), label(s.tokens_per_second().round())));
    tiles.extend(s.tflops_per_device.map(|t| ("TFLOP/s a device".to_string(), format!("{t:.3}"))));
    tiles.extend(s.mfu.map(|m| ("MFU".to_string(), format!("{:.1} %", m * 100.0))));
    tiles.extend(
        s.memory_peak.map(|b| ("peak memory".to_string(), format!("{:.2} GiB", b as f64 / (1u64 << 30) as f64))),
    );
    if r.skipped > 0 {
        tiles.push(("skipped updates".into(), r.skipped.to_string()));
    }
    if training {
        let left = s.train_iters.saturating_sub(s.iteration) as f64 * s.seconds;
        tiles.push(("time left".into(), duration(left)));
    }
    let mut out = String::from("<div class=\"tiles\">");
    for (name, value) in tiles {
        let _ = write!(out, "<div><small>{}</small><b>{}</b></div>", escape(&name), escape(&value));
    }
    out.push_str("</div>\n");
    out
}
