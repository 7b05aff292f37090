package report

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// drawing is a finished SVG element. Everything in it is a number, a name of our own, or escaped.
type drawing string

// style is how a line looks; the page's style sheet has a colour of it for light and for dark, and lines differ in their dashes, too.
type style string

// The styles: what a line shows decides.
const (
	styleSatisfied style = "satisfied"
	styleGuard     style = "guard"
	styleForm      style = "form"
	styleBase      style = "base"
)

// line is a series of points. A point that is not finite interrupts it.
type line struct {
	Style style
	X, Y  []float64
}

// panel is a small chart.
type panel struct {
	Title, XLabel string
	// Low and High bound the y axis; when they are equal the data do.
	Low, High float64
	// XHigh is the end of the x axis, from 1; 0: the data decide.
	XHigh float64
	Lines []line
}

// Size of a panel and its margins, in SVG units.
const (
	panelWidth, panelHeight              = 230.0, 130.0
	marginLeft, marginRight              = 36.0, 8.0
	marginTop, marginBottom              = 20.0, 22.0
	forestLabel, forestRow, forestHeight = 118.0, 17.0, 46.0
)

// draw makes the SVG.
func (p panel) draw() drawing {
	low, high, xHigh := p.bounds()
	x := scale(1, max(xHigh, 2), marginLeft, panelWidth-marginRight)
	y := scale(low, high, panelHeight-marginBottom, marginTop)
	var b strings.Builder
	open(&b, panelWidth, panelHeight, p.Title)
	label(&b, marginLeft, 12, "start", "title", p.Title)
	for _, tick := range ticks(low, high) {
		fmt.Fprintf(&b, `<path class="grid" d="M%s %sH%s"/>`, at(marginLeft), at(y(tick)), at(panelWidth-marginRight))
		label(&b, marginLeft-4, y(tick)+3, "end", "", plain(tick))
	}
	label(&b, marginLeft, panelHeight-8, "middle", "", "1")
	label(&b, panelWidth-marginRight, panelHeight-8, "end", "", plain(max(xHigh, 2)))
	label(&b, (marginLeft+panelWidth)/2, panelHeight-8, "middle", "", p.XLabel)
	drawn := false
	for _, l := range p.Lines {
		drawn = l.draw(&b, x, y) || drawn
	}
	if !drawn {
		label(&b, (marginLeft+panelWidth)/2, panelHeight/2, "middle", "", "nothing measured")
	}
	b.WriteString("</svg>")
	return drawing(b.String())
}

// bounds are those of the data, where the panel does not give them.
func (p panel) bounds() (low, high, xHigh float64) {
	low, high, xHigh = p.Low, p.High, p.XHigh
	if low == high {
		low, high = span(p.Lines)
	}
	for _, l := range p.Lines {
		for _, v := range l.X {
			xHigh = max(xHigh, v)
		}
	}
	return low, high, xHigh
}

// span is the range of the finite values of some lines, never empty.
func span(lines []line) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, l := range lines {
		for _, v := range l.Y {
			if finite(v) {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	switch {
	case low > high:
		return 0, 1
	case low == high:
		return low - 0.5, high + 0.5
	}
	return low, high
}

// draw reports whether there was anything to draw.
func (l line) draw(b *strings.Builder, x, y func(float64) float64) bool {
	var path strings.Builder
	points, pen := 0, "M"
	var px, py float64
	for i, v := range l.Y {
		if !finite(v) {
			pen = "M"
			continue
		}
		px, py = x(l.X[i]), y(v)
		fmt.Fprintf(&path, "%s%s %s", pen, at(px), at(py))
		points, pen = points+1, "L"
	}
	switch points {
	case 0:
		return false
	case 1:
		fmt.Fprintf(b, `<circle class="dot %s" cx="%s" cy="%s" r="2.5"/>`, l.Style, at(px), at(py))
	default:
		fmt.Fprintf(b, `<path class="line %s" d="%s"/>`, l.Style, path.String())
	}
	return true
}

// forest is a chart of means with intervals, one row an arm.
type forest struct {
	Title string
	High  float64
	// Mark is a line across: a bar. 0: none.
	Mark float64
	Rows []forestArm
}

// forestArm is an arm's row: the mean with its interval, and the seeds as small marks.
type forestArm struct {
	Name  string
	Mean  *Estimate
	Seeds []float64
}

// draw makes the SVG.
func (f forest) draw() drawing {
	const width = 2*panelWidth + 10
	height := forestHeight + forestRow*float64(len(f.Rows))
	x := scale(0, f.High, forestLabel, width-marginRight-6)
	var b strings.Builder
	open(&b, width, height, f.Title)
	label(&b, forestLabel, 12, "start", "title", f.Title)
	bottom := height - marginBottom
	for _, tick := range ticks(0, f.High) {
		fmt.Fprintf(&b, `<path class="grid" d="M%s %sV%s"/>`, at(x(tick)), at(marginTop), at(bottom))
		label(&b, x(tick), height-8, "middle", "", plain(tick))
	}
	if f.Mark > 0 && f.Mark <= f.High {
		fmt.Fprintf(&b, `<path class="mark" d="M%s %sV%s"/>`, at(x(f.Mark)), at(marginTop), at(bottom))
	}
	for i, row := range f.Rows {
		y := marginTop + forestRow*(float64(i)+0.7)
		label(&b, forestLabel-8, y+3, "end", "", row.Name)
		for _, v := range row.Seeds {
			fmt.Fprintf(&b, `<path class="seed" d="M%s %sV%s"/>`, at(x(v)), at(y-4), at(y+4))
		}
		if row.Mean == nil {
			label(&b, forestLabel+4, y+3, "start", "", none)
			continue
		}
		if row.Mean.Low != nil {
			fmt.Fprintf(&b, `<path class="line satisfied" d="M%s %sH%s"/>`, at(x(*row.Mean.Low)), at(y), at(x(*row.Mean.High)))
		}
		class := "dot satisfied"
		if row.Mean.Censored > 0 {
			class = "dot open satisfied"
		}
		fmt.Fprintf(&b, `<circle class="%s" cx="%s" cy="%s" r="4"/>`, class, at(x(row.Mean.Mean)), at(y))
	}
	b.WriteString("</svg>")
	return drawing(b.String())
}

func open(b *strings.Builder, width, height float64, title string) {
	fmt.Fprintf(b, `<svg viewBox="0 0 %s %s" role="img" aria-label="%s">`, at(width), at(height), html.EscapeString(title))
}

func label(b *strings.Builder, x, y float64, anchor, class, text string) {
	fmt.Fprintf(b, `<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, at(x), at(y), anchor, class, html.EscapeString(text))
}

// scale maps from..to onto low..high, with values beyond the ends put onto them.
func scale(from, to, low, high float64) func(float64) float64 {
	return func(v float64) float64 {
		return low + (min(max(v, from), to)-from)/(to-from)*(high-low)
	}
}

// ticks are about four round values between low and high.
func ticks(low, high float64) []float64 {
	if !finite(low) || !finite(high) || high <= low {
		return nil
	}
	step := math.Pow(10, math.Floor(math.Log10((high-low)/4)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if (high-low)/(step*factor) <= 4.5 {
			step *= factor
			break
		}
	}
	var all []float64
	for i := math.Ceil(low/step - 1e-9); i*step <= high+step*1e-9; i++ {
		all = append(all, i*step)
	}
	return all
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// at is a coordinate.
func at(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// plain is a tick's number.
func plain(v float64) string {
	return strconv.FormatFloat(math.Round(v*1e6)/1e6+0, 'g', 4, 64) // + 0 makes -0 a 0
}
