//! One chart as SVG: axes with round numbers, a line for each curve, breaks where a value is not finite.

use std::fmt::Write as _;

/// A line of a chart.
pub(super) struct Line {
    /// Name for the legend.
    pub name: String,
    /// Style class: `a` is the main curve, `b` the second.
    pub class: &'static str,
    /// (x, y).
    pub points: Vec<(f64, f64)>,
    /// Draw the points themselves as well.
    pub dots: bool,
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 22.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 28.0;

/// The chart under its title, or nothing if no line has a point.
pub(super) fn chart(title: &str, unit: &str, lines: &[Line]) -> String {
    let finite = || lines.iter().flat_map(|l| &l.points).filter(|(x, y)| x.is_finite() && y.is_finite());
    if finite().next().is_none() {
        return String::new();
    }
    let bound = |f: fn(&(f64, f64)) -> f64| {
        finite().map(f).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    };
    let (x_ticks, y_ticks) = (ticks(bound(|p| p.0), 6), ticks(bound(|p| p.1), 5));
    let x_range = (bound(|p| p.0).0, bound(|p| p.0).1);
    let y_range = (y_ticks[0].min(bound(|p| p.1).0), y_ticks[y_ticks.len() - 1].max(bound(|p| p.1).1));
    let place = |v: f64, (low, high): (f64, f64), from: f64, to: f64| {
        if high > low { from + (v - low) / (high - low) * (to - from) } else { (from + to) / 2.0 }
    };
    let px = |x: f64| place(x, x_range, LEFT, WIDTH - RIGHT);
    let py = |y: f64| place(y, y_range, HEIGHT - BOTTOM, TOP);
    let mut out = format!(
        "<figure><figcaption>{} <small>{}</small></figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(title),
        escape(unit),
        escape(title)
    );
    for y in &y_ticks {
        let at = py(*y);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            label(*y)
        );
    }
    for x in x_ticks.iter().filter(|x| (x_range.0..=x_range.1).contains(*x)) {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            px(*x),
            HEIGHT - 8.0,
            label(*x)
        );
    }
    for line in lines.iter().filter(|l| !l.points.is_empty()) {
        let mut path = String::new();
        let mut pen_down = false;
        for (x, y) in &line.points {
            if !x.is_finite() || !y.is_finite() {
                pen_down = false;
                continue;
            }
            let _ = write!(path, "{}{:.1} {:.1}", if pen_down { "L" } else { "M" }, px(*x), py(*y));
            pen_down = true;
        }
        let _ =
            writeln!(out, "<path class=\"{}\" d=\"{path}\"><title>{}</title></path>", line.class, escape(&line.name));
        let lonely = line.points.len() == 1;
        for (x, y) in line.points.iter().filter(|(x, y)| (line.dots || lonely) && x.is_finite() && y.is_finite()) {
            let _ = writeln!(
                out,
                "<circle class=\"{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{} {}: {}</title></circle>",
                line.class,
                px(*x),
                py(*y),
                escape(&line.name),
                label(*x),
                label(*y)
            );
        }
    }
    out.push_str("</svg>");
    if lines.iter().filter(|l| !l.points.is_empty()).count() > 1 {
        out.push_str("<p class=\"legend\">");
        for line in lines.iter().filter(|l| !l.points.is_empty()) {
            let _ = write!(out, "<span class=\"{}\">{}</span> ", line.class, escape(&line.name));
        }
        out.push_str("</p>");
    }
    out.push_str("</figure>\n");
    out
}

/// Round numbers that cover a range: multiples of 1, 2 or 5 times a power of ten, about `count` of them.
fn ticks((low, high): (f64, f64), count: usize) -> Vec<f64> {
    let span = high - low;
    if span <= 0.0 || !span.is_finite() {
        return vec![low];
    }
    let raw = span / count as f64;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= raw).unwrap_or(10.0 * power);
    let (first, last) = ((low / step).floor(), (high / step).ceil());
    if !step.is_normal() || last - first > 50.0 {
        return vec![low, high];
    }
    (0..=(last - first) as usize).map(|i| (first + i as f64) * step).collect()
}

/// At most six significant digits, short exponents for the very large and small.
pub(super) fn label(x: f64) -> String {
    let magnitude = x.abs();
    if x == 0.0 {
        return "0".to_string();
    }
    if !x.is_finite() {
        return if x.is_nan() {
            "NaN"
        } else if x > 0.0 {
            "∞"
        } else {
            "-∞"
        }
        .to_string();
    }
    if !(1e-3..1e6).contains(&magnitude) {
        let text = format!("{x:.2e}");
        return match text.split_once('e') {
            Some((digits, e)) => format!("{}e{e}", digits.trim_end_matches('0').trim_end_matches('.')),
            None => text,
        };
    }
    let decimals = (5 - magnitude.log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{x:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

/// Text for HTML.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover() {
        for (range, want) in [
            ((0.0, 10.0), vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0]),
            ((2.3, 4.1), vec![2.0, 2.5, 3.0, 3.5, 4.0, 4.5]),
            ((5.0, 5.0), vec![5.0]),
        ] {
            assert_eq!(ticks(range, 5), want);
        }
        for (low, high) in [(-1e300, 1e300), (0.0, 5e-324), (1.0, 1.0 + f64::EPSILON), (1e15, 1e15 + 1.0)] {
            let t = ticks((low, high), 5);
            assert!(!t.is_empty() && t.len() < 60 && t.iter().all(|v| v.is_finite()), "{t:?}");
        }
    }

    #[test]
    fn labels_are_short() {
        for (x, text) in [
            (0.0, "0"),
            (2.5, "2.5"),
            (100_000.0, "100000"),
            (1e6, "1e6"),
            (1.5e-4, "1.5e-4"),
            (-0.25, "-0.25"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "∞"),
        ] {
            assert_eq!(label(x), text);
        }
    }

    #[test]
    fn a_value_that_is_not_finite_breaks_the_line() {
        let points = vec![(1.0, 1.0), (2.0, f64::NAN), (3.0, 2.0), (4.0, 3.0)];
        let svg = chart("a<b", "", &[Line { name: "x".into(), class: "a", points, dots: false }]);
        assert_eq!(svg.matches('M').count(), 2, "{svg}");
        assert!(svg.contains("a&lt;b") && !svg.contains("NaN"));
        assert_eq!(
            chart("t", "", &[Line { name: "x".into(), class: "a", points: vec![(1.0, f64::NAN)], dots: true }]),
            ""
        );
    }
}
