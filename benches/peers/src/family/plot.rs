//! The plot of rate against order as SVG: a point for each peer.

use std::fmt::Write;

use super::{Contention, FamilyPeer};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 370.0;
const TOP: f64 = 40.0;
/// End of the axis, which leaves room for names.
const RIGHT: f64 = 520.0;
/// Number of contenders in the plot.
const CONTENDERS: usize = 16;

pub(super) fn draw(contention: &Contention) -> String {
    let points: Vec<(FamilyPeer, f64, usize)> = contention
        .contests
        .iter()
        .filter_map(|(peer, contest)| Some((*peer, contest.as_ref().ok()?)))
        .filter(|(_, contest)| contest.contender_count == CONTENDERS)
        .map(|(peer, contest)| (peer, contest.locks_per_second, contest.overtaken_most))
        .collect();
    let fastest = points.iter().map(|(_, rate, _)| *rate).fold(1.0, f64::max);
    let decades = points.iter().map(|(.., overtaken)| decades_of(*overtaken)).fold(1.0, f64::max).ceil();
    let x = |overtaken: usize| LEFT + decades_of(overtaken) / decades * (RIGHT - LEFT);
    let y = |rate: f64| BOTTOM - rate / fastest * (BOTTOM - TOP);
    let mut body = format!(
        "<text x=\"{LEFT}\" y=\"18\" font-weight=\"bold\">{CONTENDERS} clients of one lock, without a hold</text>\n\
         <path d=\"M{LEFT} {TOP} V{BOTTOM} H{RIGHT}\" fill=\"none\" stroke=\"#555\"/>\n\
         <text x=\"8\" y=\"{label}\" fill=\"#555\">locks/s</text>\n\
         <text x=\"{LEFT}\" y=\"{under}\" fill=\"#555\">later callers that came before one waiter, at most: none at the left, \
         each step ten times as many</text>\n",
        label = TOP - 6.0,
        under = BOTTOM + 36.0,
    );
    let mut limit = 1;
    while decades_of(limit) <= decades {
        let _ = writeln!(
            body,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#555\">{limit}</text>",
            x(limit),
            BOTTOM + 16.0
        );
        limit *= 10;
    }
    let _ = writeln!(
        body,
        "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\" fill=\"#555\">{fastest:.0}</text>",
        LEFT - 6.0,
        TOP + 4.0
    );
    for (peer, rate, overtaken) in points {
        let colour = if peer.is_ours() { "#c0392b" } else { "#4a78a8" };
        let (x, y) = (x(overtaken), y(rate));
        let _ = writeln!(
            body,
            "<circle cx=\"{x:.0}\" cy=\"{y:.0}\" r=\"5\" fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            x + 9.0,
            y + 4.0,
            peer.name().replace('`', "")
        );
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

/// Powers of ten above 0.1: zero is at the left, and one is a step away.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn decades_of(count: usize) -> f64 {
    if count == 0 { 0.0 } else { (count as f64).log10() + 1.0 }
}
