//! Shows a program: as a table, as a graph, and as a picture of its memory.

use std::fmt::{self, Write};

use super::program::Program;
use crate::device::Mode;
use crate::device::program::{Access, RecordedLaunch, StorageRef};

/// Describes an operand: `f32 [2, 3] @256` is in the block, `f32 [2, 3] #7` is in storage 7.
fn operand(program: &Program, access: &Access) -> String {
    let place = match access.place {
        StorageRef::External(e) => format!("#{}", program.recorded.externals[e].id()),
        StorageRef::Temporary(t) => format!("@{}", program.offset(t).unwrap_or(0)),
    };
    format!("{} {} {place}", access.dtype, access.layout.shape())
}

/// The bytes that a launch reads and writes. What it adds to counts twice.
pub(super) fn bytes(launch: &RecordedLaunch) -> usize {
    let writes = launch.writes.iter().map(|(a, mode)| match mode {
        Mode::Replace => a.bytes(),
        Mode::Accumulate => 2 * a.bytes(),
    });
    launch.reads.iter().map(Access::bytes).chain(writes).sum()
}

/// The multiplications and additions of the matrix products in a launch.
pub(super) fn flops(launch: &RecordedLaunch) -> u64 {
    let reads: Vec<_> = launch.reads.iter().map(|a| a.layout.shape()).collect();
    let writes: Vec<_> = launch.writes.iter().map(|(a, _)| a.layout.shape()).collect();
    launch.kernel.flops(&reads, &writes)
}

impl fmt::Display for Program {
    /// A line for each launch: its number, the numbers of the launches that it waits for, the bytes that it reads and
    /// writes, the multiplications and additions of its matrix products, the operation, and its operands. `@` is an
    /// offset in the block; `#` is the storage of a tensor from outside.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} launches (for {} recorded ones, {} dead ones dropped), {} temporaries in {} bytes (at least {}), {} dependencies, longest chain {}",
            self.launch_count(),
            self.recorded_launches(),
            self.dead_launches(),
            self.temporaries(),
            self.block_bytes(),
            self.live_bytes(),
            self.dependencies(),
            self.longest_chain(),
        )?;
        writeln!(
            f,
            "{:>5}  {:>16}  {:>12}  {:>14}  {:<28}  operands -> results",
            "#", "waits for", "bytes", "flops", "operation"
        )?;
        for (at, launch) in self.launches().enumerate() {
            let waits: Vec<String> = self.waits[at].iter().map(usize::to_string).collect();
            let reads: Vec<String> = launch.reads.iter().map(|a| operand(self, a)).collect();
            let writes = launch.writes.iter().map(|(a, mode)| {
                let added = if *mode == Mode::Accumulate { "+= " } else { "" };
                format!("{added}{}", operand(self, a))
            });
            let writes: Vec<String> = writes.collect();
            writeln!(
                f,
                "{at:>5}  {:>16}  {:>12}  {:>14}  {:<28}  {} -> {}",
                waits.join(" "),
                bytes(launch),
                flops(launch),
                launch.op,
                reads.join(", "),
                writes.join(", ")
            )?;
            for part in launch.kernel.parts() {
                writeln!(f, "{:>55}  {part}", "")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({} launches, {} bytes)", self.launch_count(), self.block_bytes())
    }
}

impl Program {
    /// The dependencies as a graph for Graphviz: a node for each launch, and an edge to each launch that waits for
    /// it.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph step {\n  node [shape=box];\n");
        for (at, launch) in self.launches().enumerate() {
            let shape = launch.writes.first().map_or(String::new(), |(a, _)| a.layout.shape().to_string());
            let _ = writeln!(dot, "  n{at} [label=\"{at} {}\\n{shape}\"];", launch.op);
            for before in &self.waits[at] {
                let _ = writeln!(dot, "  n{before} -> n{at};");
            }
        }
        dot.push_str("}\n");
        dot
    }

    /// The memory plan as an SVG picture: a box for each temporary. Horizontally it spans from its first launch to
    /// its last one, vertically from its first byte to its last one. The title of a box says what made it.
    pub fn memory_svg(&self) -> String {
        const WIDTH: f64 = 1200.0;
        const HEIGHT: f64 = 600.0;
        let across = WIDTH / (self.launch_count() + 1) as f64;
        let upward = HEIGHT / self.block_bytes().max(1) as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#f4f4f4\"/>\n"
        );
        for ((t, life), offset) in self.lives.iter().zip(&self.plan.offsets) {
            let (x, width) = (life.first as f64 * across, (life.last + 1 - life.first) as f64 * across);
            let height = life.bytes as f64 * upward;
            let y = HEIGHT - *offset as f64 * upward - height;
            // Neighbours get very different colours.
            let hue = (t * 137) % 360;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" fill=\"hsl({hue},60%,65%)\" stroke=\"#fff\" stroke-width=\"0.3\"><title>{}: {} bytes at {offset}, launches {} to {}</title></rect>",
                self.recorded.temporaries[*t].op, life.bytes, life.first, life.last,
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}
