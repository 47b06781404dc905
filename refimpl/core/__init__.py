"""What every other room uses: settings, errors, sequences, arithmetic, files. No tensor library is imported here."""
