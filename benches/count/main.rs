//! `engine_count ROUNDS DEPTH`: runs the engine alone for so many rounds, to be counted from outside
//! (`scripts/instructions`). Without arguments it makes one round, as a test of itself.

#[path = "../engine_loop.rs"]
mod engine_loop;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|text| text.parse::<usize>().ok());
    let (rounds, depth) = (numbers.next().unwrap_or(1), numbers.next().unwrap_or(1));
    let mut engine = engine_loop::EngineLoop::new(5, depth);
    for _ in 0..rounds {
        engine.pairs();
    }
}
