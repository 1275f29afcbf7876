//! Says in words what differs between two recordings of a step.

use std::fmt;
use std::sync::Arc;

use super::recorded::Recorded;
use crate::device::program::{Access, RecordedLaunch, StorageRef};
use crate::device::recording::Births;
use crate::device::{Mode, Storage};
use crate::error::{Error, Result};
use crate::recycled::Recycled;

/// The advice at the end of every message about a changed recording.
const FIX: &str = "the closure runs only while it is recorded, so a value that it takes from the host never changes: keep what changes from step to step in a tensor on the device (a schedule over a step counter, a generator) and advance it in the step, or pass it as an input";

/// Where the storages of the new recording come from.
#[derive(Clone, Copy)]
pub(super) struct Origins<'a> {
    pub(super) externals: &'a [Recycled<Storage>],
    pub(super) births: &'a Births,
}

/// Compares a new recording of a closure with the first one, launch by launch as they come. So the new one needs no
/// memory for its launches.
pub(super) struct Comparison {
    first: Arc<Recorded>,
    /// How many launches have come.
    launches: usize,
    /// The first launch that is not there in the first recording, if all before it are.
    extra: Option<&'static str>,
    /// The first difference.
    difference: Option<Error>,
}

impl Comparison {
    pub(super) fn with(first: Arc<Recorded>) -> Comparison {
        Comparison { first, launches: 0, extra: None, difference: None }
    }

    /// The launches of the first recording that have come again unchanged.
    pub(super) fn same(&self) -> &[RecordedLaunch] {
        match self.difference {
            None => &self.first.launches[..self.launches.min(self.first.launches.len())],
            Some(_) => &[],
        }
    }

    /// Compares the next launch.
    pub(super) fn add(&mut self, is: &RecordedLaunch, now: Origins<'_>) {
        let at = self.launches;
        self.launches += 1;
        match self.first.launches.get(at) {
            _ if self.difference.is_some() => {}
            Some(was) => {
                let difference = self.first.launch_difference(was, is, now);
                self.difference = difference.map(|what| changed(at, was.op, what));
            }
            None => self.extra = self.extra.or(Some(is.op)),
        }
    }

    /// Compares the outputs, at the end of the new recording.
    ///
    /// # Errors
    /// [`Error::RecordingChanged`], which names the first launch that differs, and what of it.
    pub(super) fn finish(&mut self, outputs: &[Access], now: Origins<'_>) -> Result<()> {
        if let Some(difference) = self.difference.take() {
            return Err(difference);
        }
        let first = &self.first;
        let (was, is) = (first.launches.len(), self.launches);
        let missing = first.launches.get(is).map(|launch| ("no longer", launch.op));
        if let Some((whether, op)) = missing.or(self.extra.map(|op| ("also", op))) {
            let what = format!(
                "the closure {whether} runs {op} here: the step had {was} launches when it was recorded, and has {is} now"
            );
            return Err(changed(was.min(is), op, what));
        }
        let (count, now_count) = (first.outputs.len(), outputs.len());
        if count != now_count {
            let what = format!(
                "the closure returned {count} tensors when it was recorded, and returns {now_count} now"
            );
            return Err(changed(was, "outputs", what));
        }
        for (i, (x, y)) in first.outputs.iter().zip(outputs).enumerate() {
            if let Some(what) = first.difference(&format!("output {i}"), x, y, now) {
                return Err(changed(was, "outputs", what));
            }
        }
        Ok(())
    }
}

fn changed(launch: usize, op: &'static str, what: String) -> Error {
    Error::RecordingChanged { launch, op, message: format!("{what}; {FIX}") }
}

impl Recorded {
    /// How a launch differs from the one at its place in another recording.
    fn launch_difference(
        &self,
        was: &RecordedLaunch,
        is: &RecordedLaunch,
        now: Origins<'_>,
    ) -> Option<String> {
        if was.op != is.op {
            return Some(format!("the closure now runs {} here instead of {}", is.op, was.op));
        }
        let (before, after) = (was.kernel.parameters(), is.kernel.parameters());
        if before != after {
            return Some(parameter_difference(&before, &after));
        }
        let (before, after) = (was.kernel.words_before(), is.kernel.words_before());
        if before != after {
            let what = "the number of random words of the batch's rows before those that it draws for";
            return Some(moved(what, before, after));
        }
        let counts = [was.reads.len(), was.writes.len()];
        let counts_now = [is.reads.len(), is.writes.len()];
        if counts != counts_now {
            let text = |[reads, writes]: [usize; 2]| format!("{reads} operands and {writes} results");
            return Some(format!(
                "it had {} when it was recorded, and has {} now",
                text(counts),
                text(counts_now)
            ));
        }
        for (n, (x, y)) in was.reads.iter().zip(&is.reads).enumerate() {
            if let Some(what) = self.difference(&format!("operand {n}"), x, y, now) {
                return Some(what);
            }
        }
        for (n, ((x, mode), (y, now_mode))) in was.writes.iter().zip(&is.writes).enumerate() {
            let name = format!("result {n}");
            if let Some(what) = self.difference(&name, x, y, now) {
                return Some(what);
            }
            if mode != now_mode {
                let how = match now_mode {
                    Mode::Accumulate => {
                        "replaced what was in its memory when it was recorded, and is added to it now"
                    }
                    Mode::Replace => {
                        "was added to what was in its memory when it was recorded, and replaces it now"
                    }
                };
                return Some(format!("{name} {how}"));
            }
        }
        None
    }

    /// How an operand, result or output differs from its counterpart in another recording.
    fn difference(&self, name: &str, was: &Access, is: &Access, now: Origins<'_>) -> Option<String> {
        let (shape, now_shape) = (was.layout.shape(), is.layout.shape());
        if was.dtype != is.dtype {
            return Some(moved(&format!("the dtype of {name}"), was.dtype, is.dtype));
        }
        if shape != now_shape {
            return Some(moved(&format!("the shape of {name}"), shape, now_shape));
        }
        let dtype = was.dtype;
        if was.layout.strides() != is.layout.strides() {
            let strides = |access: &Access| format!("{:?}", access.layout.strides());
            let what = format!("the strides of {name} ({dtype} {shape})");
            let (was, is) = (strides(was), strides(is));
            return Some(format!("{what} were {was} when it was recorded, and are {is} now"));
        }
        if was.layout.offset() != is.layout.offset() {
            let what = format!("the first element of {name} ({dtype} {shape}) in its memory");
            return Some(moved(&what, was.layout.offset(), is.layout.offset()));
        }
        match (was.place, is.place) {
            (StorageRef::Temporary(a), StorageRef::Temporary(b)) if a == b => None,
            (StorageRef::Temporary(a), StorageRef::Temporary(b)) => {
                let by = self.temporaries.get(a).map_or("", |it| it.op);
                Some(format!(
                    "{name} ({dtype} {shape}) is now another intermediate result: one of {}, it was one of {by}",
                    now.births.made_by(b)
                ))
            }
            (StorageRef::External(a), StorageRef::External(b)) => {
                let (a, b) = (self.externals[a].id(), now.externals[b].id());
                (a != b).then(|| {
                    format!(
                        "{name} ({dtype} {shape}) is now another tensor from outside the step, in storage {b}; it was in storage {a}"
                    )
                })
            }
            (StorageRef::Temporary(_), StorageRef::External(_)) => Some(format!(
                "{name} ({dtype} {shape}) is now a tensor from outside the step; the step made it when it was recorded"
            )),
            (StorageRef::External(_), StorageRef::Temporary(_)) => Some(format!(
                "{name} ({dtype} {shape}) is now made in the step; it was a tensor from outside when it was recorded"
            )),
        }
    }
}

fn moved(what: &str, was: impl fmt::Display, is: impl fmt::Display) -> String {
    format!("{what} was {was} when it was recorded, and is {is} now")
}

/// Names the first parameter that differs between the texts of two kernels of one operation, as derived `Debug` writes
/// them.
fn parameter_difference(was: &str, is: &str) -> String {
    let [before, after] = [was, is].map(|text| Value::parse(&mut Rest(text)));
    let mut path = Vec::new();
    let (x, y) = before.difference(&after, &mut path).unwrap_or((&before, &after));
    let mut texts = [x.words(true), y.words(true)];
    if texts[0] == texts[1] {
        texts = [x.words(false), y.words(false)];
    }
    let name = match path.join(".") {
        path if path.is_empty() => "its parameter".to_owned(),
        path => format!("its parameter `{path}`"),
    };
    moved(&name, &texts[0], &texts[1])
}

/// A value, read from the text that derived `Debug` writes.
#[derive(Debug, PartialEq)]
enum Value<'a> {
    /// `Name`, `0.5`, `"text"`.
    Word(&'a str),
    /// `Name { field: value, .. }`.
    Struct(&'a str, Vec<(&'a str, Value<'a>)>),
    /// `Name(value, ..)`, or `(value, ..)`.
    Tuple(&'a str, Vec<Value<'a>>),
    /// `[value, ..]`.
    List(Vec<Value<'a>>),
}

/// The part of a text that is not read yet.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    /// Goes past a character, if it is next.
    fn take(&mut self, c: char) -> bool {
        let next = self.0.trim_start().strip_prefix(c);
        self.0 = next.unwrap_or(self.0);
        next.is_some()
    }

    /// The text up to the next bracket, comma or colon, or a quoted text.
    fn word(&mut self) -> &'a str {
        let text = self.0.trim_start();
        let end = match text.strip_prefix('"') {
            Some(quoted) => {
                let mut escaped = false;
                let end = quoted.char_indices().find(|&(_, c)| {
                    let ends = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                end.map_or(text.len(), |(at, _)| at + 2)
            }
            None => text.find(['{', '}', '(', ')', '[', ']', ',', ':']).unwrap_or(text.len()),
        };
        let (word, rest) = text.split_at(end);
        self.0 = rest;
        word.trim_end()
    }

    /// Values up to the closing bracket.
    fn items<T>(&mut self, close: char, mut item: impl FnMut(&mut Rest<'a>) -> T) -> Vec<T> {
        let mut items = Vec::new();
        while !self.take(close) && !self.0.is_empty() {
            let before = self.0.len();
            items.push(item(self));
            self.take(',');
            if self.0.len() == before {
                break; // Not a text that derived `Debug` writes.
            }
        }
        items
    }
}

impl<'a> Value<'a> {
    fn parse(rest: &mut Rest<'a>) -> Value<'a> {
        if rest.take('[') {
            return Value::List(rest.items(']', Value::parse));
        }
        let word = rest.word();
        if rest.take('{') {
            let field = |rest: &mut Rest<'a>| {
                let name = rest.word();
                rest.take(':');
                (name, Value::parse(rest))
            };
            return Value::Struct(word, rest.items('}', field));
        }
        match rest.take('(') {
            true => Value::Tuple(word, rest.items(')', Value::parse)),
            false => Value::Word(word),
        }
    }

    /// The first parts that differ. The names of the fields that lead there are added to `path`.
    fn difference<'v>(&'v self, other: &'v Self, path: &mut Vec<&'a str>) -> Option<(&'v Self, &'v Self)> {
        match (self, other) {
            (Value::Struct(name, fields), Value::Struct(other_name, other_fields))
                if name == other_name && fields.len() == other_fields.len() =>
            {
                fields.iter().zip(other_fields).find_map(|((field, value), (_, other))| {
                    path.push(field);
                    let found = value.difference(other, path);
                    if found.is_none() {
                        path.pop();
                    }
                    found
                })
            }
            (Value::Tuple(name, items), Value::Tuple(other_name, other_items))
                if name == other_name && items.len() == other_items.len() =>
            {
                items.iter().zip(other_items).find_map(|(item, other)| item.difference(other, path))
            }
            _ => (self != other).then_some((self, other)),
        }
    }

    /// The value in words. `short` writes a number that an f32 holds with the digits of an f32.
    fn words(&self, short: bool) -> String {
        let list =
            |items: &[Value<'_>]| items.iter().map(|item| item.words(short)).collect::<Vec<_>>().join(", ");
        match self {
            Value::Word("None") => "none".to_owned(),
            Value::Word(word) => match word.parse::<f64>() {
                Ok(number) if short && f64::from(number as f32) == number => (number as f32).to_string(),
                _ => (*word).to_owned(),
            },
            Value::Tuple("Some" | "", items) => list(items),
            Value::Tuple(name, items) => format!("{name} ({})", list(items)),
            Value::List(items) => format!("[{}]", list(items)),
            Value::Struct(name, fields) => {
                let fields = fields.iter().map(|(name, value)| format!("{name} {}", value.words(short)));
                format!("{name} ({})", fields.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::optim::Schedule;
    use crate::types::{DType, Shape};

    #[derive(Debug, Clone)]
    struct Inner {
        shape: Shape,
        dtype: DType,
        limit: Option<f64>,
    }

    #[derive(Debug, Clone)]
    struct Outer {
        name: &'static str,
        inner: Inner,
        schedule: Schedule,
        causal: bool,
    }

    #[test]
    fn the_parameter_that_differs_is_named_with_both_values() {
        let inner = Inner { shape: Shape::from([2, 3]), dtype: DType::F32, limit: None };
        let a = Outer { name: "a, \"b\" {", inner, schedule: Schedule::Constant { lr: 0.5 }, causal: true };
        let changed = |change: fn(&mut Outer)| {
            let mut b = a.clone();
            change(&mut b);
            parameter_difference(&format!("{a:?}"), &format!("{b:?}"))
        };
        let says = |text: &str, name: &str, was: &str, is: &str| {
            assert_eq!(text, moved(&format!("its parameter `{name}`"), was, is));
        };
        says(&changed(|b| b.causal = false), "causal", "true", "false");
        says(&changed(|b| b.inner.shape = Shape::from([4])), "inner.shape", "[2, 3]", "[4]");
        says(&changed(|b| b.inner.limit = Some(0.1)), "inner.limit", "none", "0.1");
        says(&changed(|b| b.inner.dtype = DType::I64), "inner.dtype", "F32", "I64");
        says(
            &changed(|b| b.schedule = Schedule::Constant { lr: 0.1_f32.into() }),
            "schedule.lr",
            "0.5",
            "0.1",
        );
        let cosine = |b: &mut Outer| b.schedule = Schedule::Cosine { lr: 1e-300, eta_min: 0.0, t_max: 7 };
        let words = "Cosine (lr 1e-300, eta_min 0, t_max 7)";
        says(&changed(cosine), "schedule", "Constant (lr 0.5)", words);
        says(&changed(|b| b.name = "c"), "name", r#""a, \"b\" {""#, r#""c""#);
        // Two numbers that have the same digits as f32.
        let text = parameter_difference("Scalar(0.1)", &format!("Scalar({:?})", f64::from(0.1_f32)));
        assert_eq!(text, moved("its parameter", "0.1", "0.10000000149011612"));
        // Whatever a text is, it is told.
        for (was, is) in [("", "x"), ("A {", "A { x: }"), ("(1, 2)", "(1)"), ("]", "}"), ("a: b", "a: c")] {
            assert!(parameter_difference(was, is).contains("its parameter"), "{was} {is}");
        }
    }
}
