"""What every face that strangers reach has alike: where they come from, how often they may try, how they are told no,
and what is written down about it. Which face it is, and what it serves, is not known here."""
