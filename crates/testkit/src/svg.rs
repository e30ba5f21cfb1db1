//! A terminal's screen as a picture: text that can be selected, on a dark ground of its own, so that any page can show it.

use std::fmt::Write;
use vt100::{Cell, Color, Screen};

/// Of one character, in units of the picture. The text is stretched to this, whatever font there is.
const CELL: (f64, f64) = (8.4, 18.0);
const MARGIN: f64 = 14.0;
const FONT_SIZE: f64 = 14.0;
/// From the top of a row to the line that letters stand on.
const BASELINE: f64 = 13.5;

const GROUND: &str = "#161b22";
const EDGE: &str = "#6e7681";
const TEXT: &str = "#e6edf3";

/// Black, red, green, yellow, blue, magenta, cyan, white, and the same brighter.
const COLOURS: [&str; 16] = [
    "#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4", //
    "#6e7681", "#ffa198", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#f0f6fc",
];

/// The same for the same screen.
pub(crate) fn svg(screen: &Screen, title: &str) -> String {
    let (rows, columns) = screen.size();
    let (rows, columns) = (rows.get(), columns.get());
    let width = f64::from(columns) * CELL.0 + 2.0 * MARGIN;
    let height = f64::from(rows) * CELL.1 + 2.0 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.1} {height:.1}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\">\n<title>{}</title>\n\
         <rect x=\"0.5\" y=\"0.5\" width=\"{:.1}\" height=\"{:.1}\" rx=\"8\" fill=\"{GROUND}\" stroke=\"{EDGE}\"/>\n\
         <g font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace\" \
         font-size=\"{FONT_SIZE}\" fill=\"{TEXT}\" xml:space=\"preserve\">\n",
        escaped(title),
        width - 1.0,
        height - 1.0,
    );
    for row in 0..rows {
        for run in runs(screen, row, columns) {
            run.draw(row, &mut svg);
        }
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

#[derive(Clone, PartialEq)]
struct Look {
    front: String,
    ground: Option<String>,
    bold: bool,
    underline: bool,
}

impl Look {
    fn of(cell: &Cell) -> Look {
        let (front, ground) = (colour(cell.fgcolor()), colour(cell.bgcolor()));
        let (front, ground) = match cell.inverse() {
            true => (
                Some(ground.unwrap_or_else(|| GROUND.into())),
                Some(front.unwrap_or_else(|| COLOURS[7].into())),
            ),
            false => (front, ground),
        };
        Look {
            front: front.unwrap_or_else(|| TEXT.into()),
            ground,
            bold: cell.bold(),
            underline: cell.underline(),
        }
    }
}

/// Neighbours that look alike.
struct Run {
    from: u16,
    cells: Vec<Glyph>,
    look: Look,
}

#[derive(Clone)]
struct Glyph {
    text: String,
    columns: u16,
}

fn runs(screen: &Screen, row: u16, columns: u16) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for column in 0..columns {
        let Some(cell) = screen.cell(row, column).filter(|cell| !cell.is_wide_continuation()) else {
            continue;
        };
        let text = if cell.has_contents() { cell.contents() } else { " " };
        let glyph = Glyph { text: text.to_owned(), columns: if cell.is_wide() { 2 } else { 1 } };
        let look = Look::of(cell);
        match runs.last_mut().filter(|run| run.look == look) {
            Some(run) => run.cells.push(glyph),
            None => runs.push(Run { from: column, cells: vec![glyph], look }),
        }
    }
    runs
}

fn columns(cells: &[Glyph]) -> f64 {
    cells.iter().map(|glyph| f64::from(glyph.columns)).sum()
}

impl Run {
    fn draw(&self, row: u16, svg: &mut String) {
        let (mut x, y) = (MARGIN + f64::from(self.from) * CELL.0, MARGIN + f64::from(row) * CELL.1);
        if let Some(ground) = &self.look.ground {
            let width = columns(&self.cells) * CELL.0;
            let _infallible = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{ground}\"/>",
                CELL.1
            );
        }
        // Each word in its place: blanks are where fonts and viewers differ.
        for word in self.cells.split_inclusive(|glyph| glyph.text == " ") {
            let letters: Vec<Glyph> = word.iter().filter(|glyph| glyph.text != " ").cloned().collect();
            if !letters.is_empty() {
                self.word(&letters, x, y, svg);
            }
            x += columns(word) * CELL.0;
        }
    }

    fn word(&self, word: &[Glyph], x: f64, y: f64, svg: &mut String) {
        let Look { front, bold, underline, .. } = &self.look;
        let mut style = String::new();
        if front != TEXT {
            let _infallible = write!(style, " fill=\"{front}\"");
        }
        if *bold {
            style.push_str(" font-weight=\"bold\"");
        }
        if *underline {
            style.push_str(" text-decoration=\"underline\"");
        }
        let (length, y) = (columns(word) * CELL.0, y + BASELINE);
        let text: String = word.iter().map(|glyph| escaped(&glyph.text)).collect();
        let _infallible = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{length:.1}\" \
             lengthAdjust=\"spacingAndGlyphs\"{style}>{text}</text>"
        );
    }
}

fn colour(colour: Color) -> Option<String> {
    match colour {
        Color::Default => None,
        Color::Idx(index @ 0..16) => Some(COLOURS[usize::from(index)].to_owned()),
        Color::Idx(index @ 16..232) => {
            let part = |number: u8| if number == 0 { 0 } else { 55 + 40 * number };
            let index = index - 16;
            Some(hex(part(index / 36), part(index / 6 % 6), part(index % 6)))
        }
        Color::Idx(grey) => Some(hex(8 + 10 * (grey - 232), 8 + 10 * (grey - 232), 8 + 10 * (grey - 232))),
        Color::Rgb(red, green, blue) => Some(hex(red, green, blue)),
    }
}

fn hex(red: u8, green: u8, blue: u8) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// As XML wants it; what no XML may have at all is no text on a screen.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars().filter(|character| !character.is_control()) {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_marks_stand_where_they_were() {
        let mut parser = vt100::Parser::new(2.try_into().unwrap(), 20.try_into().unwrap(), 0);
        parser.process(b"a <b> & \x1b[31mred\x1b[0m\r\n\x1b[7mbar\x1b[0m");
        let drawn = svg(parser.screen(), "\"t\"");
        let red = "<text x=\"81.2\" y=\"27.5\" textLength=\"25.2\" lengthAdjust=\"spacingAndGlyphs\" fill=\"#ff7b72\">red</text>";
        assert!(
            drawn.contains("<title>&quot;t&quot;</title>") && drawn.contains(">&lt;b&gt;</text>"),
            "{drawn}"
        );
        assert!(drawn.contains(">&amp;</text>") && drawn.contains(red), "{drawn}");
        assert!(drawn.contains("height=\"18.0\" fill=\"#b1bac4\"/>"), "{drawn}");
        assert_eq!(drawn, svg(parser.screen(), "\"t\""));
    }
}
