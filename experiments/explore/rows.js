// The rows, unpacked from their columns. A row is an object by column; its name is what a mark's colour says.
// Passes are in their own order, and the rows of one as they were.

function unpack(data) {
  const columns = Object.entries(data.columns).map(([name, column]) => {
    const value = Array.isArray(column) ? (i) => column[i] : (i) => column.words[column.at[i]];
    return [name, value];
  });
  return Array.from({ length: data.count }, (_, i) => {
    const row = Object.fromEntries(columns.map(([name, value]) => [name, value(i)]));
    row.name = row.stage ? `${row.algorithm}: ${row.stage}` : row.algorithm;
    return row;
  }).sort((a, b) => data.passes.indexOf(a.pass) - data.passes.indexOf(b.pass));
}

// The values of a column, each once, in the order of the rows.
function distinct(rows, column) {
  return [...new Set(rows.map((row) => row[column]))];
}

// What a comparison takes rows of: a folder's, of one date or of any.
function ofRun(rows, run) {
  const [folder, date] = run.split(" | ");
  return rows.filter((row) => row.run === folder && (!date || row.date === date));
}
