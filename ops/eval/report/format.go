package report

import (
	"fmt"
	"math"
	"strconv"
)

// none stands for a figure that does not exist.
const none = "–"

// sessions writes sessions to alignment: with a mark where the mean is only a lower bound.
func sessions(e *Estimate) string {
	if e == nil {
		return none
	}
	text := fmt.Sprintf("%.1f", e.Mean)
	if e.Censored > 0 {
		text = "≥ " + text
	}
	text += interval(e, "%.1f")
	if e.Censored > 0 {
		text += fmt.Sprintf(", %d not aligned", e.Censored)
	}
	return text
}

// share writes a share of replies.
func share(e *Estimate) string {
	if e == nil {
		return none
	}
	return fmt.Sprintf("%.2f", e.Mean) + interval(e, "%.2f")
}

// signed writes a difference.
func signed(e *Estimate) string {
	if e == nil {
		return "no seed in common"
	}
	return fmt.Sprintf("%+.2f", e.Mean) + interval(e, "%+.2f")
}

func interval(e *Estimate, format string) string {
	if e.Low == nil || e.High == nil {
		return " (n = 1: no interval)"
	}
	return fmt.Sprintf(" ["+format+", "+format+"], n %d", *e.Low, *e.High, e.N)
}

// part writes a share of k in n, and n.
func part(k, n uint64) string {
	if n == 0 {
		return none
	}
	return fmt.Sprintf("%.2f (%d of %d)", float64(k)/float64(n), k, n)
}

// number writes an optional figure with so many digits behind the point.
func number(v *float64, digits int) string {
	if v == nil || math.IsNaN(*v) || math.IsInf(*v, 0) {
		return none
	}
	return strconv.FormatFloat(*v, 'f', digits, 64)
}

func optional(v *int) string {
	if v == nil {
		return none
	}
	return strconv.Itoa(*v)
}
