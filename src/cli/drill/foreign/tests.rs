//! Lines of a contender, and what the witness and the record make of them.

use std::io::{Write, pipe};

use super::super::course::course_of;
use super::*;

/// Reads these lines, whose times are in ms of a drill that begins now with a TTL of 1 s.
///
/// Returns how often a lock was held, was refused, was outlasted, had two holders and had two holders at
/// work, and the delay of the latest call in ms.
fn counts(lines: &str) -> [u64; 6] {
    course_of(&["--ttl", "1s", "--time", "20min"], |course| counts_in(course, lines))
}

fn counts_in(course: &Course<'_>, lines: &str) -> [u64; 6] {
    // The clock is read in the middle, so that earlier and later times are converted.
    let clock = Clock { now: course.begun + Duration::from_millis(1000), ns: 1_000_000_000 };
    let mut contender = Foreign::new(0, clock, course);
    let in_ns = |word: &str| match word.parse::<u64>() {
        Ok(ms) => format!("{ms}000000"),
        Err(_) => word.to_owned(),
    };
    for line in lines.split(';') {
        let words: Vec<String> = line.split(' ').map(in_ns).collect();
        let (output, mut program) = pipe().expect("a pipe");
        writeln!(program, "{}", words.join(" ")).expect("it fits");
        drop(program);
        // Lines count even if the program has ended.
        contender.read(output, || true);
    }
    let (record, found) = (contender.record, course.witness.found());
    let late = u64::try_from(record.latest_call.as_millis()).expect("short");
    [record.locked, record.contended, record.lost, found.overlap_count, found.outlasted_count, late]
}

#[test]
fn lines_of_a_contender_are_visits_and_calls() {
    for (lines, expected) in [
        ("asked 0;acquired 900 1900;released 1100;done 1150", [1, 0, 0, 0, 0, 0]),
        ("asked 0;acquired 1500", [0, 0, 0, 0, 0, 500]),
        ("asked 0;refused 1200", [0, 1, 0, 0, 0, 200]),
        ("refused 1200;refused 1300", [0, 2, 0, 0, 0, 0]),
        ("acquired 0 900;released 950;done 2000", [1, 0, 1, 0, 0, 50]),
        ("acquired 0 900;released 900", [1, 0, 0, 0, 0, 0]),
        // Without a stated end, the validity is the TTL.
        ("acquired 500;released 1500", [1, 0, 0, 0, 0, 0]),
        ("acquired 500;released 1501", [1, 0, 1, 0, 0, 0]),
        // A new lock ends the last one. A call without a reported end has not ended.
        ("acquired 0;acquired 100;released 200", [2, 0, 0, 0, 0, 0]),
        ("acquired 0;released 100;acquired 5000;refused 6000", [1, 1, 0, 0, 0, 0]),
        ("released 0;released 10;done 1020;done 9000", [0, 0, 0, 0, 0, 10]),
        // These lines stand for two programs, of which one wrote late.
        ("acquired 0 900;released 800;acquired 700 1500;released 1000", [2, 0, 0, 1, 0, 0]),
        ("acquired 0 900;released 1000;acquired 950 1500;released 1200", [2, 0, 1, 0, 1, 0]),
        ("a library speaks;;acquiredly 5;done", [0; 6]),
    ] {
        assert_eq!(counts(lines), expected, "{lines}");
    }
    // The time of reading replaces a missing time.
    let [.., late] = counts("asked;refused 1000000");
    assert!((900_000..999_000).contains(&late), "{late}");
    // The rest of a line that is too long is another line.
    let long = "x".repeat(4096);
    assert_eq!(counts(&format!("{long}refused;{long}x refused;{long}")), [0, 1, 0, 0, 0, 0]);
}

/// Times of the wall clock, since a process's start, in ms, or from another machine.
#[test]
fn times_of_another_clock_are_a_defect() {
    let off = |lines: &str| {
        course_of(&["--ttl", "1s", "--time", "30s"], |course| {
            let clock = Clock { now: course.begun, ns: 1_000_000_000_000 };
            let mut contender = Foreign::new(0, clock, course);
            lines.split(';').for_each(|line| contender.handle(line, Instant::now()));
            contender.end_hold(Instant::now());
            let Record { locked, failed, latest_call, ref seconds, .. } = contender.record;
            assert!(seconds.len() <= 40 && latest_call < Duration::from_secs(40), "{lines}");
            (locked, failed)
        })
    };
    assert_eq!(
        off("asked 1000000000000;acquired 1001000000000 1002000000000;released 1001500000000"),
        (1, 0)
    );
    for time in ["0", "1", "998900000000", "1035000000000", "1790000000000000000", "18446744073709551615"] {
        for word in ["asked", "acquired", "refused", "released", "done"] {
            assert_eq!(off(&format!("{word} {time};{word} {time}")), (0, 1), "{word} {time}");
        }
    }
    for until in ["0", "1790000000000000000"] {
        assert_eq!(off(&format!("acquired 1001000000000 {until}")), (0, 1), "{until}");
    }
    assert_eq!(off("asking 5;tried 7 times"), (0, 0), "a library prints what it likes");
}

#[test]
fn visits_stay_while_an_older_visit_lasts() {
    course_of(&["--ttl", "1s", "--resources", "1", "--time", "20min"], |course| {
        let clock = Clock { now: course.begun, ns: 0 };
        let [mut one, mut other] = [0, 1].map(|number| Foreign::new(number, clock, course));
        let at = |second: u64| format!("{second}000000000");
        let visit = |it: &mut Foreign<'_>, from, until| {
            it.handle(&format!("acquired {} {}", at(from), at(until)), course.begun);
        };
        visit(&mut one, 0, 1000);
        for second in [100, 200] {
            visit(&mut other, second, second + 1);
            other.handle(&format!("released {}", at(second + 1)), course.begun);
        }
        one.handle(&format!("released {}", at(300)), course.begun);
        assert_eq!(course.witness.found().overlap_count, 2);
    });
}

/// A process that keeps the output of an ended contender open may write for ever.
#[test]
fn output_of_an_ended_contender_is_bounded() {
    let path = std::env::temp_dir().join(format!("redlatch-contender-{}", std::process::id()));
    std::fs::write(&path, "refused\n".repeat(2 * REST_SIZE_MAX / 8)).expect("a file");
    let output = std::fs::File::open(&path).expect("it is there");
    std::fs::remove_file(&path).expect("it is there");
    course_of(&[], |course| {
        let mut contender = Foreign::new(0, Clock::new(), course);
        contender.read(output, || true);
        assert_eq!(contender.record.contended, REST_SIZE_MAX as u64 / 8);
    });
}
