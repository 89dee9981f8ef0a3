//! Plots as SVG: ratios with their intervals, bars in groups, points on a logarithmic scale.
//!
//! They have no background, and their black and white are replaced by the page's colours, so that one plot serves light and dark.

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext, SeriesLabelPosition};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, DynElement, IntoDynElement, PathElement, Rectangle};
use plotters::prelude::{Cartesian2d, IntoLogRange};
use plotters::style::{BLACK, Color, RGBColor, WHITE};

use crate::results::{Figure, figure};
use crate::row::{Bound, Row, with_better};

/// Width and height of a figure.
pub(super) const SIZE: (u32, u32) = (860, 380);
/// Colours that can be read on black and on white.
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(168, 113, 209),
    RGBColor(214, 69, 80),
    RGBColor(140, 140, 140),
    RGBColor(23, 170, 187),
    RGBColor(160, 120, 60),
];
/// Of ratios without a bound, within it, and beyond it.
const UNBOUND: RGBColor = RGBColor(31, 119, 180);
const HELD: RGBColor = RGBColor(44, 160, 44);
const MISSED: RGBColor = RGBColor(214, 69, 80);
/// Fraction of a group's width that its bars take.
const FILLED: f64 = 0.8;
/// Height of the plot relative to the highest bar.
const HEIGHT: f64 = 1.1;
/// Room for the names of the series, to the right of the groups, relative to these.
const LEGEND: f64 = 0.35;
/// Height of a row of the ratios, and of their axis.
const ROW_PIXELS: u32 = 22;
const AXIS_PIXELS: u32 = 70;
/// Width of a character of a row's name, about.
const LETTER_PIXELS: f64 = 6.6;

type Failed = Box<dyn std::error::Error>;
type Element<'a> = DynElement<'static, SVGBackend<'a>, (f64, f64)>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The text of an `svg` element.
fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Result<(), Failed>) -> Result<String, String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        draw(&area).map_err(|error| error.to_string())?;
        area.present().map_err(|error| error.to_string())?;
    }
    Ok(text)
}

/// The ratio of each row that was measured, with its interval and bound, on a logarithmic scale; `None` without any.
pub(super) fn ratios(rows: &[Row]) -> Result<Option<String>, String> {
    let measured = rows.iter().filter_map(|row| Some((row, row.medians.filter(|found| is_drawable(found.ratio))?)));
    let measured: Vec<_> = measured.collect();
    if measured.is_empty() {
        return Ok(None);
    }
    let ends = measured.iter().flat_map(|(row, found)| {
        let bound = row.bound.map(|(Bound::AtMost(bound) | Bound::AtLeast(bound))| bound);
        [found.ratio].into_iter().chain(found.interval.into_iter().flatten()).chain(bound)
    });
    let (least, most) = ends
        .filter(|end| is_drawable(*end))
        .fold((0.8_f64, 1.25_f64), |(least, most), end| (least.min(end / 1.05), most.max(end * 1.05)));
    let count = measured.len();
    let longest = measured.iter().map(|(row, _)| row.name().chars().count()).max().unwrap_or(0);
    let names_pixels = (longest as f64 * LETTER_PIXELS) as u32 + 20;
    let size = (names_pixels + SIZE.0 / 2, AXIS_PIXELS + ROW_PIXELS * count as u32);
    let draw = |area: &Area<'_>| -> Result<(), Failed> {
        // On a range of logarithms, because a logarithmic range labels nothing between 0.1, 1 and 10.
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(names_pixels)
            .build_cartesian_2d(least.log2()..most.log2(), -0.5..count as f64 - 0.5)?;
        // The first row is the highest.
        let row_at = |y: f64| measured.len().checked_sub(1 + y.round() as usize).and_then(|index| measured.get(index));
        chart
            .configure_mesh()
            .disable_y_mesh()
            .max_light_lines(0)
            .x_desc("ours / reference")
            .x_labels(6)
            .x_label_formatter(&|log| figure(log.exp2()))
            .y_labels(2 * count + 1)
            .y_label_formatter(&|y| match is_whole(*y) {
                true => row_at(*y).map(|(row, _)| row.name()).unwrap_or_default(),
                false => String::new(),
            })
            .label_style(("sans-serif", 12))
            .draw()?;
        let equal = PathElement::new(vec![(0.0, -0.5), (0.0, count as f64 - 0.5)], BLACK.mix(0.6));
        chart.draw_series([equal])?;
        for (index, (row, found)) in measured.iter().enumerate() {
            let y = (count - 1 - index) as f64;
            let colour = match row.bound {
                None => UNBOUND,
                Some(_) if row.holds() => HELD,
                Some(_) => MISSED,
            };
            let interval = found.interval.filter(|ends| ends.iter().all(|end| is_drawable(*end)));
            let interval = interval
                .map(|[from, to]| PathElement::new(vec![(from.log2(), y), (to.log2(), y)], colour.stroke_width(3)));
            let bound = row.bound.map(|(Bound::AtMost(bound) | Bound::AtLeast(bound))| {
                PathElement::new(vec![(bound.log2(), y - 0.35), (bound.log2(), y + 0.35)], BLACK.stroke_width(1))
            });
            chart.draw_series(interval.into_iter().chain(bound))?;
            chart.draw_series([Circle::new((found.ratio.log2(), y), 4, colour.filled())])?;
        }
        Ok(())
    };
    svg(size, draw).map(Some)
}

/// Whether it has a place on a logarithmic scale.
fn is_drawable(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

fn is_whole(at: f64) -> bool {
    (at - at.round()).abs() < 0.01 && at > -0.1
}

/// A figure as bars from 0.
pub(super) fn bars(figure: &Figure) -> Result<String, String> {
    let values = figure.series.iter().flat_map(|(_, values)| values).flatten();
    let highest = values.copied().fold(0.0, f64::max);
    let width = FILLED / figure.series.len().max(1) as f64;
    let bar = |series: usize, group: usize, value: f64| {
        let left = group as f64 - FILLED / 2.0 + series as f64 * width;
        let colour = COLOURS[series % COLOURS.len()];
        Rectangle::new([(left, 0.0), (left + width * 0.92, value)], colour.filled())
    };
    svg(SIZE, |area| {
        let mut chart = axes(figure, area, 0.0..highest.max(1.0) * HEIGHT)?;
        for (index, (name, values)) in figure.series.iter().enumerate() {
            let elements = placed(values).map(|(group, value)| bar(index, group, value).into_dyn());
            series(&mut chart, index, name, elements.collect())?;
        }
        legend(&mut chart)
    })
}

/// A figure as points, joined by lines, on a logarithmic scale.
pub(super) fn points(figure: &Figure) -> Result<String, String> {
    let values =
        figure.series.iter().flat_map(|(_, values)| values).flatten().copied().filter(|value| is_drawable(*value));
    let (least, most) =
        values.fold((f64::MAX, f64::MIN_POSITIVE), |(least, most), value| (least.min(value), most.max(value)));
    let range = (least.min(most) / 2.0..most * 2.0).log_scale();
    svg(SIZE, |area| {
        let mut chart = axes(figure, area, range)?;
        for (index, (name, values)) in figure.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let places = placed(values).filter(|(_, value)| is_drawable(*value));
            let places: Vec<(f64, f64)> = places.map(|(group, value)| (group as f64, value)).collect();
            let mut elements = vec![PathElement::new(places.clone(), colour.stroke_width(2)).into_dyn()];
            elements.extend(places.into_iter().map(|place| Circle::new(place, 4, colour.filled()).into_dyn()));
            series(&mut chart, index, name, elements)?;
        }
        legend(&mut chart)
    })
}

type Chart<'area, 'text, Y> = ChartContext<'area, SVGBackend<'text>, Cartesian2d<RangedCoordf64, Y>>;

/// The values of a series, each with the number of its group.
fn placed(values: &[Option<f64>]) -> impl Iterator<Item = (usize, f64)> {
    values.iter().enumerate().filter_map(|(group, value)| Some((group, (*value)?)))
}

/// The axes of a figure, whose groups lie side by side.
fn axes<'area, 'text, Y>(
    shown: &Figure,
    area: &'area Area<'text>,
    range: Y,
) -> Result<Chart<'area, 'text, Y::CoordDescType>, Failed>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let groups = shown.groups.len();
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(45)
        .y_label_area_size(80)
        .build_cartesian_2d(-0.5..groups as f64 * (1.0 + LEGEND) - 0.5, range)?;
    let group = |x: &f64| shown.groups.get(x.round() as usize).filter(|_| is_whole(*x)).cloned().unwrap_or_default();
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(0)
        .y_label_formatter(&|value| if *value == 0.0 { "0".to_owned() } else { figure(*value) })
        .x_labels(groups * 2 + 1)
        .x_label_formatter(&group)
        .x_desc(&*shown.axis)
        .y_desc(with_better(&shown.unit))
        .label_style(("sans-serif", 14))
        .draw()?;
    Ok(chart)
}

/// Draws a series and names it in the legend.
fn series<'text, Y>(
    chart: &mut Chart<'_, 'text, Y>,
    index: usize,
    name: &str,
    elements: Vec<Element<'text>>,
) -> Result<(), Failed>
where
    Y: Ranged<ValueType = f64>,
{
    let colour = COLOURS[index % COLOURS.len()];
    chart
        .draw_series(elements)?
        .label(name)
        .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
    Ok(())
}

fn legend<'area, 'text: 'area, Y>(chart: &mut Chart<'area, 'text, Y>) -> Result<(), Failed>
where
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .label_font(("sans-serif", 14))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Shape;

    fn shown() -> Figure {
        Figure {
            number: Some("4.3".to_owned()),
            title: "copies".to_owned(),
            axis: "subscriber".into(),
            groups: (1..=4).map(|n| n.to_string()).collect(),
            series: vec![
                ("N = 2".to_owned(), [5.0, 6.0].map(Some).to_vec()),
                ("N = 4".to_owned(), [7.0, 800.0, 9.0, 10.0].map(Some).to_vec()),
            ],
            unit: "us".into(),
            shape: Shape::Bars,
        }
    }

    fn count(svg: &str, colour: &str) -> usize {
        svg.matches(&format!("fill=\"{colour}\"")).count()
    }

    #[test]
    fn every_value_is_a_bar_or_a_point_and_every_name_can_be_read() {
        for svg in [bars(&shown()).unwrap(), points(&shown()).unwrap()] {
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            // The legend has one more of each.
            assert_eq!((count(&svg, "#1F77B4"), count(&svg, "#FF7F0E")), (2 + 1, 4 + 1), "{svg}");
            for word in ["N = 2", "N = 4", "subscriber", "us"] {
                assert!(svg.contains(word), "{word}");
            }
        }
        let empty = Figure { groups: Vec::new(), series: Vec::new(), ..shown() };
        assert!(bars(&empty).is_ok() && points(&empty).is_ok());
    }

    #[test]
    fn a_ratio_is_drawn_by_whether_it_holds_and_a_missing_one_is_not() {
        let row = |figures, bound| Row::of(("local", "1 KiB".to_owned()), "floor", "us", figures, bound);
        let missing = Row::missing(("local", "1 KiB".to_owned()), "a peer", "us", "no program");
        let bound = Some(Bound::AtMost(1.0));
        let rows = [row((1.0, 2.0), bound), row((3.0, 2.0), bound), row((3.0, 2.0), None), missing.clone()];
        let svg = ratios(&rows).unwrap().unwrap();
        assert_eq!(["#2CA02C", "#D64550", "#1F77B4"].map(|colour| count(&svg, colour)), [1; 3], "{svg}");
        assert!(svg.contains("1 KiB beside floor") && !svg.contains("a peer"), "{svg}");
        assert_eq!(ratios(&[missing]).unwrap(), None);
    }
}
