//! Tables in one style.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

/// Creates a table with these headings. Columns from `first_right` on are right-aligned.
pub(crate) fn table<const N: usize>(headings: [&str; N], first_right: usize) -> Table {
    const LINE: LineStyle = LineStyle::none().fill('─').junction('─');
    let style = TableStyle::new().top_border(LINE).header_separator(LINE).bottom_border(LINE);
    let mut table = Table::new();
    table.load_style(style).set_header(headings);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if index >= first_right {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
