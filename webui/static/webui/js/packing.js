// Undoes webui/packing.py: lists of numbers that several charts draw travel once.

export function unpacked({ lists, ...data }) {
  const restore = (value) => {
    if (Array.isArray(value)) return value.map(restore);
    if (!value || typeof value !== "object") return value;
    if (Object.hasOwn(value, "$"))
      return value.keep === undefined ? lists[value.$].slice() : smoothed(lists[value.$], value.keep);
    if (value.by_column) return { columns: value.columns, rows: rows(value.by_column.map(restore)) };
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, restore(member)]));
  };
  return restore(data);
}

function smoothed(values, keep) {
  let last;
  return values.map((value) => (last = last === undefined ? value : keep * last + (1 - keep) * value));
}

function rows(columns) {
  return columns.length ? columns[0].map((_, i) => columns.map((column) => column[i])) : [];
}
