//! A figure as SVG: bars in groups.

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::drawing::IntoDrawingArea;
use plotters::element::Rectangle;
use plotters::style::{BLACK, Color, RGBColor, WHITE};

use super::report::Figure;

const SIZE: (u32, u32) = (860, 380);
const COLOURS: [RGBColor; 4] =
    [RGBColor(31, 119, 180), RGBColor(255, 127, 14), RGBColor(44, 160, 44), RGBColor(148, 103, 189)];
/// Fraction of a group's width that its bars take.
const FILLED: f64 = 0.8;
/// Height of the plot relative to the highest bar, with room for the names above it.
const HEIGHT: f64 = 1.4;

/// The figure as an `svg` element.
pub(super) fn bars(figure: &Figure) -> Result<String, String> {
    let mut text = String::new();
    draw(figure, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw(figure: &Figure, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let highest = figure.series.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    let groups = figure.groups.len();
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .x_label_area_size(45)
        .y_label_area_size(80)
        .build_cartesian_2d(-0.5..groups as f64 - 0.5, 0.0..highest.max(1.0) * HEIGHT)?;
    let group = |x: &f64| {
        let is_whole = (x - x.round()).abs() < 0.01;
        figure.groups.get(x.round() as usize).filter(|_| is_whole && *x > -0.1).cloned().unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(0)
        .y_label_formatter(&|us| format!("{us:.0}"))
        .x_labels(groups * 2 + 1)
        .x_label_formatter(&group)
        .x_desc(figure.axis)
        .y_desc(figure.unit)
        .label_style(("sans-serif", 14))
        .draw()?;
    let width = FILLED / figure.series.len().max(1) as f64;
    for (index, (name, values)) in figure.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let bar = |(group, value): (usize, &f64)| {
            let left = group as f64 - FILLED / 2.0 + index as f64 * width;
            Rectangle::new([(left, 0.0), (left + width * 0.92, *value)], colour.filled())
        };
        chart
            .draw_series(values.iter().enumerate().map(bar))?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .label_font(("sans-serif", 14))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_a_bar_and_every_name_can_be_read() {
        let figure = Figure {
            number: "4.3".to_owned(),
            title: "copies".to_owned(),
            axis: "subscriber",
            groups: (1..=4).map(|n| n.to_string()).collect(),
            series: vec![("N = 2".to_owned(), vec![5.0, 6.0]), ("N = 4".to_owned(), vec![7.0, 8.0, 9.0, 10.0])],
            unit: "us",
        };
        let svg = bars(&figure).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        let count = |colour: &str| svg.matches(&format!("fill=\"{colour}\"")).count();
        // The legend has one more of each.
        assert_eq!((count("#1F77B4"), count("#FF7F0E")), (2 + 1, 4 + 1), "{svg}");
        for word in ["N = 2", "N = 4", "subscriber", "us"] {
            assert!(svg.contains(word), "{word}");
        }
        assert!(bars(&Figure { groups: Vec::new(), series: Vec::new(), ..figure }).is_ok());
    }
}
