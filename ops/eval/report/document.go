package report

// document is the report as one reads it, the same for the page and for Markdown.
type document struct {
	Title    string
	Sections []section
}

type section struct {
	ID, Title string
	Blocks    []block
}

// block is one of its fields.
type block struct {
	Text    string
	List    []string
	Table   *table
	Figure  *figure
	Query   *Query
	Code    *code
	Samples []Sample
}

// table has a caption that says what its figures are.
type table struct {
	Caption string
	Head    []string
	Rows    [][]string
}

// figure is a grid of panels with one legend. Markdown leaves it out: its figures stand in a table too.
type figure struct {
	Caption string
	Columns int
	Legend  []legend
	Panels  []drawing
}

// legend names a style of line.
type legend struct {
	Style style
	Name  string
}

// code is text to be shown as it is.
type code struct {
	Title, Text string
}

func text(s string) block                      { return block{Text: s} }
func tableOf(t table) block                    { return block{Table: &t} }
func figureOf(f figure) block                  { return block{Figure: &f} }
func (r *Report) query(q Query) block          { return block{Query: &Query{q.Name, r.Queries[q.Name]}} }
func (t *table) add(cells ...string)           { t.Rows = append(t.Rows, cells) }
func sec(id, title string, b ...block) section { return section{id, title, b} }
