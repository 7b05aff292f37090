package report

import (
	"fmt"
	"strings"
)

// markdownOf writes the tables, lists, samples and queries. Plots stand in the page only.
func markdownOf(d document) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", d.Title)
	for _, s := range d.Sections {
		fmt.Fprintf(&b, "\n## %s\n", s.Title)
		for _, bl := range s.Blocks {
			bl.markdown(&b)
		}
	}
	return b.String()
}

func (bl block) markdown(b *strings.Builder) {
	switch {
	case bl.Text != "":
		fmt.Fprintf(b, "\n%s\n", inline(bl.Text))
	case len(bl.List) > 0:
		b.WriteString("\n")
		for _, item := range bl.List {
			fmt.Fprintf(b, "- %s\n", inline(item))
		}
	case bl.Table != nil:
		bl.Table.markdown(b)
	case bl.Query != nil:
		details(b, "Query: "+bl.Query.Name, bl.Query.SQL)
	case bl.Code != nil:
		fmt.Fprintf(b, "\n%s:\n\n", inline(bl.Code.Title))
		fenced(b, bl.Code.Text)
	}
	for i, s := range bl.Samples {
		if i == 0 || bl.Samples[i-1].Persona != s.Persona || bl.Samples[i-1].Moment != s.Moment {
			fmt.Fprintf(b, "\n### %s, %s, %s\n", inline(s.Arm), inline(s.Persona), s.Moment)
		}
		fmt.Fprintf(b, "\nSeed %d, %s %d: %s: %s\n\n", s.Seed, s.place(), s.Session, inline(s.Problem), inline(s.judgement()))
		fenced(b, s.Reply)
	}
}

func (t *table) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s:\n\n", strings.TrimSuffix(inline(t.Caption), "."))
	row := func(cells []string) {
		for _, c := range cells {
			fmt.Fprintf(b, "| %s ", inline(c))
		}
		b.WriteString("|\n")
	}
	row(t.Head)
	b.WriteString(strings.Repeat("|---", len(t.Head)) + "|\n")
	for _, cells := range t.Rows {
		row(cells)
	}
	if len(t.Rows) == 0 {
		b.WriteString("\nNo rows.\n")
	}
}

func details(b *strings.Builder, title, text string) {
	fmt.Fprintf(b, "\n<details><summary>%s</summary>\n\n", inline(title))
	fenced(b, text)
	b.WriteString("\n</details>\n")
}

// fenced shows a text as it is, whatever it holds: the fence is longer than every run of backticks in it.
func fenced(b *strings.Builder, text string) {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	fmt.Fprintf(b, "%s\n%s\n%s\n", fence, strings.TrimRight(text, "\n"), fence)
}

// harmless is what inline replaces.
var harmless = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `\`, `\\`, "|", `\|`, "`", "\\`", "*", `\*`, "](", `]\(`)

// inline makes a text harmless in a line or a cell: no HTML, link, code or line break, and it stays one cell.
func inline(s string) string { return harmless.Replace(strings.Join(strings.Fields(s), " ")) }

// place says what Session counts.
func (s Sample) place() string {
	return map[string]string{"before": "session", "after": "session or problem"}[s.Moment]
}

// judgement is what the persona thought.
func (s Sample) judgement() string {
	switch {
	case s.Satisfied:
		return "satisfied"
	case s.Guard == "":
		return "not satisfied: " + s.Complaint
	case s.Complaint == "":
		return "guard: " + s.Guard
	}
	return "not satisfied: " + s.Complaint + "; guard: " + s.Guard
}
